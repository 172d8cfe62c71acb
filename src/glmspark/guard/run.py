"""The guard's life: look, decide, act, record, once a second."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import VERSION
from .act import Hands, resume_command, run_as_owner
from .alerts import Alert, Readings, Watch, lasting, observe, still_s
from .config import Config, parse_config
from .decide import Action, History, Seen, decide, pace, strictest
from .deployments import Deployed, identities, node_phase
from .files import Roots, Trouble, make_dir, read_json, say
from .memory import Memory
from .peers import Receiver, Sender, read_secret
from .processes import read_process
from .prometheus import Door, render
from .protect import Protection, lock_memory
from .ring import Recorder, segment_name
from .sample import Sample, Sampler

_KEPT_ACTIONS = 20
_OPEN_EVERY = 30.0
_LISTENERS_EVERY, _RESUME_EVERY, _RESUME_LIMIT = 30.0, 30.0, 120.0
_EARLY = 3.0
"""Seconds after a new alert until the minute so far goes to a peer: it is on disk by then."""


def load_config(home: str) -> Config:
    """The node's configuration; without a file that of a node for itself. Raises Trouble."""
    path = f"{home}/config.json"
    if not Path(path).exists():
        return Config(node=socket.gethostname(), states=(str(Path(home).parent),))
    value = read_json(path)
    if value is None:
        raise Trouble(f"{path} is not JSON", next="`glmspark tune apply --only guard` writes it anew")
    return parse_config(value)


def take_lock(home: str) -> int:
    """An open file that keeps other guards away from a directory. Raises Trouble where there is one."""
    handle = os.open(f"{home}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise Trouble(f"a guard runs already in {home}") from None
    return handle


def tell_systemd(words: str) -> None:
    """A message to systemd, where it waits for one (sd_notify(3))."""
    path = os.environ.get("NOTIFY_SOCKET")
    if path:
        address = "\0" + path[1:] if path.startswith("@") else path
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
            one.sendto(words.encode(), address)


class Guard:
    """The running guard. clock, monotonic: where the time comes from."""

    def __init__(
        self,
        home: str,
        config: Config,
        *,
        sampler: Sampler | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.home, self.config = home, config
        self._clock, self._monotonic = clock, monotonic
        self._began = monotonic()
        self._history, self._watch = History(), Watch()
        self._alerts: list[Alert] = []
        self._actions: deque[dict[str, Any]] = deque(maxlen=_KEPT_ACTIONS)
        self._counts: dict[str, int] = {}
        self._door_closed: tuple[float, str] | None = None
        self._memory: Memory | None = None
        self._early: float | None = None
        self._listened = self._resumed = -1e9
        self._resuming: threading.Thread | None = None
        self._state: dict[str, Any] = {}
        self._mutex = threading.Lock()
        self.sender: Sender | None = None
        self._receiver: Receiver | None = None
        self._asides: dict[str, str] = {}
        self._door: Door | None = None
        self._opened = -1e9
        self.recorder = Recorder(home, group=config.group, closed=self._closed, clock=clock)
        self.sampler = sampler or Sampler(config, home)
        self._protection = Protection(self.sampler.roots, f"{home}/oom.json")
        self._hands = Hands(config, self._did)

    def _open(self, now: float) -> None:
        """Open the ways out, again until it works: at a node's start the fabric may have no address yet."""
        if now - self._opened < _OPEN_EVERY:
            return
        self._opened = now
        if self._door is None:
            try:
                self._door = Door(self.config.metrics, self.metrics, self.state)
                self._asides.pop("metrics", None)
            except OSError as error:
                self._asides["metrics"] = f"port {self.config.metrics[1]}: {error.strerror}"
        if self.config.peers and self._receiver is None:
            try:
                secret = read_secret(f"{self.home}/secret")
                self.sender = self.sender or Sender(self.config, secret, f"{self.home}/ring")
                self._receiver = Receiver(self.config, secret, self.home, self._clock)
                self._asides.pop("peers", None)
            except (OSError, Trouble) as error:
                self._asides["peers"] = str(error)

    def _closed(self, name: str) -> None:
        if self.sender is not None:
            self.sender.add(name)

    def _did(self, action: Action, said: str) -> None:
        """Record an action and how it went; called by the threads that act."""
        if action.quiet and not said.startswith("failed"):
            return
        at = self._clock()
        done = {
            "time": round(at, 2),
            "action": action.kind,
            "deployment": action.deployment,
            "reading": dict(action.reading),
            "why": action.why,
            "result": said,
        }
        with self._mutex:
            self._actions.append(done)
            self._counts[action.kind] = self._counts.get(action.kind, 0) + 1
        self.recorder.line(at, {"t": round(at, 2), "action": done})
        say(f"{action.kind} {action.deployment or ''}: {action.why}: {said}")

    def step(self) -> float:
        """One look with all that follows. Returns seconds until the next one."""
        now, at = self._monotonic(), self._clock()
        self._open(now)
        sample = self.sampler.read(now)
        wait = 1.0
        if sample.memory is not None:
            seen = Seen(
                now,
                sample.memory,
                sample.deployments,
                refusals=sum(event.kind == "nvrm-no-memory" for event in sample.events),
                unified=any(gpu.unified for gpu in sample.gpus),
            )
            self._history, actions = decide(self._history, seen)
            by_name = {one.name: one for one in sample.deployments}
            for action in actions:
                self._note_door(action, at)
                self._hands.take(action, by_name.get(action.deployment or ""))
            limits = strictest(sample.deployments, sample.memory.total)
            wait = pace(self._history, sample.memory, limits, self._memory)
            self._memory = sample.memory
        self._protection.apply(sample.deployments)
        if now - self._listened >= _LISTENERS_EVERY:
            self._listened = now
            self._protection.apply_listeners()
        self._resume(now)
        self._record(sample, at)
        return wait

    def _note_door(self, action: Action, at: float) -> None:
        if action.kind == "close-admission" and self._door_closed is None:
            self._door_closed = (at, action.why)
        elif action.kind == "open-admission":
            self._door_closed = None

    def _record(self, sample: Sample, at: float) -> None:
        readings = Readings(
            now=sample.now,
            time=at,
            memory=sample.memory,
            level=self._history.level,
            deployments=sample.deployments,
            engines=sample.engines,
            gpus=sample.gpus,
            links={**sample.net, **sample.rdma},
            fabric=self.sampler.fabric(sample.deployments),
            disks=sample.disks,
            events=sample.events,
            blind={**sample.blind, **self._own_problems()},
        )
        self._watch, found = observe(self._watch, readings)
        new = {one.key for one in found} - {one.key for one in self._alerts}
        self._alerts = lasting(self._alerts, found)
        self._state = self._make_state(sample, at)
        line = {
            "t": round(at, 2),
            "level": self._history.level,
            "phase": self._state["phase"],
            **self._state["readings"],
            "deployments": self._state["deployments"],
            "alerts": [one.kind for one in self._alerts],
        }
        self.recorder.line(at, line)
        for event in sample.events:
            self.recorder.line(at, {"t": round(at, 2), "kernel": event.to_json()})
        for one in self._alerts:
            if one.key in new:
                self.recorder.line(at, {"t": round(at, 2), "alert": one.to_json()})
        self.recorder.state(at, self._state)
        self._send_early(bool(new), sample.now, at)

    def _send_early(self, alarmed: bool, now: float, at: float) -> None:
        """What is alarming may be the last thing this node sees: a peer gets the minute so far."""
        if alarmed and self._early is None:
            self._early = now + _EARLY
        if self._early is not None and now >= self._early:
            self._early = None
            self._closed(segment_name(at))

    def _own_problems(self) -> dict[str, str]:
        found = dict(self._asides)
        if self.recorder.problem is not None:
            found["ring"] = self.recorder.problem
        if self.sender is not None and self.sender.problem is not None:
            found["peers"] = self.sender.problem
        return found

    def _make_state(self, sample: Sample, at: float) -> dict[str, Any]:
        deployments = {}
        for one in sample.deployments:
            engine = sample.engines.get(one.name)
            deployments[one.name] = {
                **one.to_json(),
                **({} if engine is None else engine.to_json()),
                "still_s": round(still_s(self._watch, one.name, sample.now), 1),
            }
        since, why = self._door_closed or (None, None)
        with self._mutex:
            actions, counts = list(self._actions), dict(self._counts)
        return {
            "version": 1,
            "time": round(at, 2),
            "node": self.config.node,
            "guard": VERSION,
            "pid": os.getpid(),
            "up_s": round(sample.now - self._began, 1),
            "phase": node_phase(list(sample.deployments)),
            "level": self._history.level,
            "admission": {"open": not self._history.closed, "since": since, "why": why},
            "readings": sample.to_json(),
            "deployments": deployments,
            "alerts": [one.to_json() for one in self._alerts],
            "actions": actions,
            "counts": counts,
            "copies": None if self.sender is None else {"last": self.sender.sent},
            "refused": self._protection.refused,
        }

    def _resume(self, now: float) -> None:
        """Bring back what shall survive a restart of the node, in a thread: it takes a Python's start.

        One at a time, and not while memory is short: then there may be none for a thread either.
        """
        busy = self._resuming is not None and self._resuming.is_alive()
        if now - self._resumed >= _RESUME_EVERY and self._history.level == "ok" and not busy:
            self._resumed = now
            self._resuming = threading.Thread(target=self._resume_all, daemon=True)
            try:
                self._resuming.start()
            except RuntimeError as error:
                say(f"cannot look for what is to come back: {error}")
                self._resuming = None

    def _resume_all(self) -> None:
        for base in self.config.states:
            ranks = f"{base}/ranks"
            try:
                wanted = wants_resume(ranks, self.sampler.roots)
                argv = resume_command(ranks, python="python3") if wanted else None
                if argv is not None:
                    owner = self.config.owner
                    run_as_owner(argv, argv[2], ranks, _RESUME_LIMIT, state=base, owner=owner)
            except (OSError, Trouble, KeyError) as error:
                say(f"cannot bring back what is to come back in {ranks}: {error}")

    def metrics(self) -> str:
        """The last look for Prometheus."""
        return render(self._state) if self._state else ""

    def state(self) -> str:
        """The last look as one line of JSON."""
        return json.dumps(self._state) + "\n"

    def close(self) -> None:
        """Leave things as they were found."""
        self._protection.restore()
        if self._history.closed:
            for one in self._last_serving():
                action = Action("open-admission", "the guard ends", {}, one.name)
                self._hands.take(action, one)
        self.sampler.close()
        for part in (self._door, self._receiver):
            if part is not None:
                part.close()
        self.recorder.close()

    def _last_serving(self) -> list[Deployed]:
        return [one for one in self.sampler.read(self._monotonic()).deployments if one.phase == "serving"]


def wants_resume(ranks: str, roots: Roots) -> bool:
    """Whether a deployment there that no agent answers for is marked to come back by itself: asking the
    agent's program costs a Python's start."""
    for path in Path(ranks).glob("*/spec.json"):
        spec = read_json(str(path))
        watching = spec.get("watching") if isinstance(spec, dict) else None
        if isinstance(watching, dict) and watching.get("keep_up"):
            state = read_json(str(path.with_name("state.json")))
            state = state if isinstance(state, dict) else {}
            if state.get("state") in ("stopped", "failed") and not state.get("lost"):
                continue  # it was stopped, or stays down for a reason
            agent = identities([state.get("agent")])
            if not any((one := read_process(roots, pid)) and one.started == began for pid, began in agent):
                return True
    return False


def run(home: str) -> int:
    """Be the guard until SIGTERM. Raises Trouble where it cannot begin."""
    config = load_config(home)
    make_dir(home, group=config.group)
    lock = take_lock(home)
    for leftover in Path(home).glob("*.tmp"):
        leftover.unlink()
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    guard = Guard(home, config)
    refused = lock_memory()
    say(f"guard {VERSION} on {config.node}, {home}" + (f"; {refused}" if refused else ""))
    tell_systemd("READY=1")
    try:
        while not over.is_set():
            over.wait(guard.step())
            tell_systemd("WATCHDOG=1")
    finally:
        guard.close()
        os.close(lock)
    say("ended as asked")
    return 0


def once(home: str) -> dict[str, Any]:
    """One look, without acting or recording. Raises Trouble."""
    config = load_config(home)
    sampler = Sampler(replace(config, peers=()), home)
    try:
        sampler.read(time.monotonic())
        time.sleep(0.3)
        sample = sampler.read(time.monotonic())
        found = {one.name: one.to_json() for one in sample.deployments}
        phase = node_phase(list(sample.deployments))
        return {
            "version": 1,
            "node": config.node,
            "phase": phase,
            "readings": sample.to_json(),
            "deployments": found,
        }
    finally:
        sampler.close()
