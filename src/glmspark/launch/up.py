"""Bringing a deployment up, from the side of who asked for it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from glmspark.errors import GlmsparkError, UsageError
from glmspark.launch import lock as locks
from glmspark.launch.command import check_listen, inherited_env
from glmspark.launch.lock import Lock
from glmspark.launch.prepare import Wanted, make_plan, make_record
from glmspark.launch.reaper import clean
from glmspark.launch.record import Deployment, Home, State, Verdict, deployments_dir, homes, scratch_of
from glmspark.launch.sweep import Swept, sweep
from glmspark.nodes import processes
from glmspark.nodes.facts.ports import LISTENERS, Listener, command_line, socket_owners
from glmspark.nodes.transport import Local, Transport, gather

_POLL = 0.1
_STOP_PATIENCE = 10.0  # seconds a supervisor gets to stop its ranks; it takes 5 at most by itself

Observer = Callable[[Deployment, list[Verdict]], None]


class StartError(GlmsparkError):
    """A start that failed after it had begun; what it started is stopped. deployment: its last record."""

    def __init__(self, deployment: Deployment) -> None:
        reason = deployment.reason
        super().__init__(
            reason.what if reason else f"{deployment.name} was stopped while it started",
            host=reason.node if reason else None,
            step=f"start {deployment.name}",
            seen=reason.seen if reason else None,
            next=reason.next if reason else None,
        )
        self.deployment = deployment


class CancelledError(GlmsparkError):
    """A start that was interrupted from the keyboard; everything it started is stopped."""

    exit_code = 130


@dataclass(frozen=True)
class Outcome:
    """How `bring_up` ended well. already: it was running before. cleaned: what an earlier start had left."""

    deployment: Deployment
    already: bool
    cleaned: Swept | None


def bring_up(wanted: Wanted, observe: Observer, *, transport: Transport | None = None) -> Outcome:
    """Start what is wanted and return when it is proven; at once when it already runs, or when another
    `glmspark up` that is starting the same has it proven.

    observe: called whenever the record or the verdicts change. Raises StartError when it cannot be proven
    (everything is stopped then, unless the request says keep), CancelledError on an interrupt, and what
    planning and the checks raise before anything is started.
    """
    machine = transport or Local()
    lock, running = _acquire(wanted, observe)
    if lock is None:
        assert running is not None  # noqa: S101 - one of the two is always there
        return Outcome(running, already=True, cleaned=None)
    with lock:
        try:
            _refuse_cluster(wanted.home)
            cleaned = _clean_leftovers(wanted.home)
            plan = make_plan(wanted, machine)
            with _port_guard():
                check_port(wanted, machine)
                deployment = make_record(wanted, plan, now=time.time())
                write_start(wanted.home, deployment, wanted.request.key)
        except BaseException:
            wanted.home.remove_if_empty()
            raise
        try:
            supervisor, leash = spawn(wanted.home, lock, wanted.request.key)
        except GlmsparkError as error:
            clean(wanted.home, what=error.message, next_step="`glmspark up` tries again")
            raise
    return Outcome(follow(wanted.home, supervisor, leash, observe), already=False, cleaned=cleaned)


# -- before anything is started ----------------------------------------------------------------------------


def _acquire(wanted: Wanted, observe: Observer) -> tuple[Lock | None, Deployment | None]:
    """The lock, or the deployment that already runs as wanted.

    Where another `glmspark up` is starting the same, its start is followed to its end; where that comes to
    nothing, or one is just being stopped, the lock is then free.
    """
    home = wanted.home
    end = time.monotonic() + _STOP_PATIENCE
    while True:
        lock = locks.take(home.lock_file)
        if lock is not None:
            return lock, None
        running = home.read()
        if running is not None and running.state in (State.STARTING, State.READY, State.UNPROVEN):
            if differences := wanted.differs(running, backend=wanted.local_backend):
                raise UsageError(
                    f"{home.name} already runs, but not as asked: {'; '.join(differences)}",
                    step="look for a running deployment",
                    next=f"`glmspark down {home.name}` first, or give this one a name of its own with --name",
                )
            if running.state is not State.STARTING:
                return None, running
            if running.supervisor is not None and processes.is_alive(running.supervisor.identity):
                observe(running, home.read_verdicts())
                end = time.monotonic() + _STOP_PATIENCE
        if time.monotonic() >= end:
            raise GlmsparkError(
                f"another glmspark works on {home.name}",
                step=f"lock {home.lock_file}",
                next="try again in a moment",
            )
        time.sleep(_POLL)


def _refuse_cluster(home: Home) -> None:
    """UsageError where one of that name serves on a cluster: nobody here holds its lock."""
    try:
        deployment = home.read()
    except GlmsparkError:
        return
    if deployment is not None and deployment.cluster is not None and not deployment.state.over:
        nodes = ", ".join(rank.node for rank in deployment.ranks)
        raise UsageError(
            f"{home.name} already runs on {nodes}",
            step="look for a running deployment",
            next=f"`glmspark down {home.name}` first, or give this one a name of its own with --name",
        )


def _clean_leftovers(home: Home) -> Swept | None:
    """Remove what a start that nobody answers for any more left behind. None when there was nothing."""
    try:
        deployment = home.read()
    except GlmsparkError:
        deployment = None
    if deployment is not None and deployment.state.over:
        swept = sweep(home.path, Path(deployment.scratch))
    elif home.has_record():
        swept = clean(
            home,
            what="it was left behind by a glmspark that ended",
            next_step="`glmspark up` starts it again",
        )
    else:
        swept = sweep(home.path, scratch_of(home.path))
    return swept if swept.processes or swept.files else None


@contextlib.contextmanager
def _port_guard() -> Iterator[None]:
    """One check-and-record of a port at a time, over all deployments of this user."""
    lock = locks.take(deployments_dir() / ".ports.lock", wait=_STOP_PATIENCE)
    if lock is None:
        raise GlmsparkError("another `glmspark up` is choosing a port", next="try again in a moment")
    with lock:
        yield


def check_port(wanted: Wanted, transport: Transport) -> None:
    """Raises UsageError where the API could not listen: another deployment, or another process, is there."""
    host, port = wanted.request.host, wanted.request.port
    address = "127.0.0.1" if host == "localhost" else host
    for other in homes():
        if other.name == wanted.home.name or not locks.held(other.lock_file):
            continue
        try:
            deployment = other.read()
        except GlmsparkError:  # another's record is not this start's trouble: its listener is seen below
            continue
        if deployment is not None and deployment.endpoint.port == port and not deployment.state.over:
            raise UsageError(
                f"port {port} is taken by the deployment {other.name}",
                step="check the port",
                next=f"`glmspark down {other.name}`, or choose another --port",
            )
    with contextlib.suppress(ValueError):  # a host name: only vLLM itself can tell
        taken = [one for one in gather(transport, LISTENERS) if one.port == port and one.covers(address)]
        if taken:
            raise UsageError(
                f"port {port} is taken by {_owner(taken, transport)}",
                host=transport.host,
                step="check the port",
                next="stop that, or choose another --port",
            )
    check_listen(host, port)


def _owner(taken: list[Listener], transport: Transport) -> str:
    for owner in gather(transport, socket_owners([one.inode for one in taken])):
        what = gather(transport, command_line(owner.pid))
        return f"process {owner.pid} ({what[:160]})" if what else f"process {owner.pid}"
    return f"a process of the user with id {taken[0].uid}"


# -- the start itself --------------------------------------------------------------------------------------


def write_start(home: Home, deployment: Deployment, key: str | None) -> None:
    """Make room in the directory and write record and key. StateError, and no key left, where that fails."""
    try:
        home.prepare()
        if key is not None:
            home.write_key(key)
        home.write(deployment)
    except GlmsparkError:
        home.key_file.unlink(missing_ok=True)
        raise


def spawn(home: Home, lock: Lock, key: str | None = None) -> tuple[subprocess.Popen[bytes], int]:
    """Start the supervisor of what the record says, and hand it the lock.

    Returns it and the leash: while that file is open, someone waits for it to be ready. It gets the caller's
    environment without the variable the key came from: of the ranks, only the head is given the key.
    """
    read, write = os.pipe()
    argv = [sys.executable, "-m", "glmspark.launch.supervisor", str(home.path), "--lock", str(lock.fileno())]
    try:
        process = Local().spawn(
            argv,
            env={name: value for name, value in inherited_env(os.environ).items() if value != key},
            log=home.supervisor_log,
            cwd=home.path,
            pass_fds=(lock.fileno(),),
            stdin=read,
        )
    except BaseException:
        os.close(write)
        raise
    finally:
        os.close(read)
    return process, write


# -- while it starts ---------------------------------------------------------------------------------------


def follow(home: Home, supervisor: subprocess.Popen[bytes], leash: int, observe: Observer) -> Deployment:
    """Watch a start to its end; see bring_up."""
    try:
        with _interrupts() as interrupted:
            return _watch(home, supervisor, observe, interrupted)
    except KeyboardInterrupt:
        with contextlib.suppress(ProcessLookupError):
            supervisor.send_signal(signal.SIGTERM)
        _await_end(home, supervisor)
        raise CancelledError(
            f"interrupted: {home.name} was stopped while it started", next="`glmspark up` starts it again"
        ) from None
    finally:
        os.close(leash)


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Set by Ctrl-C. An exception may be lost on its way (in a callback, while garbage is collected)."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGINT, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def _watch(
    home: Home, supervisor: subprocess.Popen[bytes], observe: Observer, interrupted: threading.Event
) -> Deployment:
    seen: tuple[str, str] | None = None
    while True:
        if interrupted.is_set():
            raise KeyboardInterrupt
        ended = supervisor.poll() is not None  # asked first: what it wrote last is then there to read
        deployment = _record(home)
        verdicts = deployment.verdicts or home.read_verdicts()
        now = deployment.model_dump_json(), repr(verdicts)
        if now != seen:
            observe(deployment, verdicts)
            seen = now
        if deployment.state is State.READY:
            return deployment
        if deployment.state is State.UNPROVEN or (deployment.state.over and ended):
            raise StartError(deployment)
        if ended:
            _await_end(home, supervisor)
            raise _lost(home)
        time.sleep(_POLL)


def _record(home: Home) -> Deployment:
    deployment = home.read()
    if deployment is None:
        raise GlmsparkError(
            f"the record of {home.name} has gone while it started",
            step=f"read {home.record_file}",
            next="leave the state directory alone while a deployment runs",
        )
    return deployment


def _await_end(home: Home, supervisor: subprocess.Popen[bytes]) -> None:
    """Wait until neither the supervisor nor its reaper is at work any more."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        supervisor.wait(_STOP_PATIENCE)
    lock = locks.take(home.lock_file, wait=_STOP_PATIENCE)
    if lock is not None:
        lock.release()


def _lost(home: Home) -> GlmsparkError:
    """The error for a supervisor that ended without closing its record."""
    deployment = _record(home)
    if not deployment.state.over and (lock := locks.take(home.lock_file)) is not None:
        with lock:  # its reaper has gone too, or could not write: if the disk is full, this says so
            clean(home, what="the supervisor ended unexpectedly", next_step="`glmspark up` tries again")
        deployment = _record(home)
    if deployment.state.over:
        return StartError(deployment)
    try:
        last = home.supervisor_log.read_text(errors="replace").strip()[-2000:]
    except OSError as error:
        last = str(error)
    return GlmsparkError(
        f"the supervisor of {home.name} ended before the deployment was ready",
        step=f"start {home.name}",
        seen=last or None,
        next=f"see {home.supervisor_log}",
    )
