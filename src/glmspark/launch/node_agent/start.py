"""Starting the agent, detached from who asked for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .agent import Agent
from .files import Home, Trouble, as_json, directories, locked, put, say, take_lock, write, write_json
from .life import OVER
from .proc import HOME_MARK, ID_MARK, boot_id
from .spec import VERSION, Spec
from .sweep import make_scratch, sweep


def start(home: Home, text: bytes, *, resumed: bool = False) -> int:
    """Start what a spec says; print one JSON line that says how it went. Raises Trouble.

    resumed: in the place of an agent that is gone; the rank starts when the leader says so.
    """
    return begin(home, text, resumed=resumed, tell=put)


def begin(home: Home, text: bytes, *, resumed: bool, tell: Callable[[object], None]) -> int:
    """The same; tell: takes what is to be said of it."""
    value = as_json(text, "the spec")
    spec = Spec.parse(value)
    step = f"start rank {spec.rank}"
    if value.get("directory") not in (None, str(home.path)):
        raise Trouble(f"the spec is for {value['directory']}, not {home.path}", step="read the spec")
    lock = take_lock(home.lock_file)
    if lock is None:
        known = home.state() or {}
        seen = f"id {known.get('id')}, {known.get('state')}"
        advice = f"`glmspark down {home.name}` first"
        if known.get("node") not in (None, spec.node):
            advice = "two nodes share this directory: set GLMSPARK_STATE_DIR on each to one of its own disk"
            raise Trouble(f"{home.path} belongs to {known['node']}", step=step, seen=seen, next=advice)
        raise Trouble(f"{home.name} already runs there", step=step, seen=seen, next=advice)
    swept = sweep(home)
    if swept.stubborn:
        raise Trouble(
            f"something of an earlier start of {home.name} would not go",
            step="clean up",
            seen="\n".join(swept.stubborn),
        )
    _prepare(home, spec, value, resumed=resumed)
    read, report = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        _become_agent(home, spec, lock, report, resumed=resumed)
    os.close(report)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as answer:
        line = answer.readline()
    os.close(lock)
    if not line:
        raise Trouble("the agent ended as it started", step=step, seen=_last(home.logs / "agent.log"))
    said = json.loads(line)
    if not said["ok"]:  # it is cleaning up; afterwards the next start may come
        take_lock(home.lock_file, 10.0)
    tell(said)
    return 0 if said["ok"] else 1


def _prepare(home: Home, spec: Spec, value: dict[str, object], *, resumed: bool) -> None:
    """Write everything the agent needs. Raises Trouble; then no secret is left."""
    before = (home.state() or {}) if resumed else {}
    home.prepare()
    now = time.time()
    first = {
        "version": VERSION, "id": spec.id, "name": spec.name, "node": spec.node,
        "rank": spec.rank, "world": spec.world, "runtime": "container" if spec.container else "process",
        "state": "starting", "since": now, "created": now, "proven": False, "reason": None,
        "agent": None, "main": None, "container": None, "image": None, "docker": spec.docker,
        "restarts": before.get("restarts") or [], "restarted": before.get("restarted") or 0,
        "counted": before.get("counted") or [], "evidence": before.get("evidence"),
        "family": [], "processes": [], "shared_memory": [], "peers": [],
        "boot_id": boot_id(), "directory": str(home.path), "scratch": spec.scratch,
    }  # fmt: skip
    try:
        if sys.argv[0] != str(home.agent):
            write(home.agent, Path(sys.argv[0]).read_bytes())
        if spec.scratch is not None:
            make_scratch(Path(spec.scratch))
        write_json(home.spec_file, {name: part for name, part in value.items() if name != "record"})
        if spec.guard is not None:
            write_json(home.guard_file, spec.guard)
        if "record" in value:
            write_json(home.record_file, value["record"])
        if spec.container:
            lines = "".join(f"{name}={text}\n" for name, text in spec.env_file.items())
            write(home.env_file, lines.encode())
        if spec.secrets.get("lockstep"):
            write(home.lockstep_file, spec.secrets["lockstep"].encode())
        write_json(home.state_file, first)
    except Trouble:
        home.forget()
        home.spec_file.unlink(missing_ok=True)
        home.guard_file.unlink(missing_ok=True)
        if spec.scratch is not None:
            shutil.rmtree(spec.scratch, ignore_errors=True)
        raise


def _become_agent(home: Home, spec: Spec, lock: int, report: int, *, resumed: bool) -> None:
    """What the forked child does; it never returns."""
    try:
        os.chdir(home.path)
        null = os.open(os.devnull, os.O_RDWR)
        try:
            log = os.open(home.logs / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError:
            log = null
        for number, handle in ((0, null), (1, log), (2, log)):
            os.dup2(handle, number)
        for entry in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
            if entry > 2 and entry not in (lock, report):
                with contextlib.suppress(OSError):
                    os.close(entry)
        for name in (ID_MARK, HOME_MARK):  # the agent is no part of what it watches
            os.environ.pop(name, None)
        asyncio.run(_live_and_go(Agent(home, spec, lock, report, resumed=resumed)))
    except BaseException as error:  # noqa: BLE001 - a forked child must never run on into its parent's code
        say(f"the agent failed: {error!r}")
    finally:
        os._exit(1)


async def _live_and_go(agent: Agent) -> None:
    await agent.run()
    os._exit(0)  # at once: a thread may still wait for Docker


def resume() -> int:
    """Start the agents that nobody answers for of deployments that are to come back by themselves (keep_up),
    after a reboot or a kill; print their names as one JSON line. Each waits for the others.

    One that was stopped, or that stays down for a reason, is left alone.
    """
    resumed, troubles = [], []
    for home in (Home(path) for path in directories()):
        try:
            text = kept(home)
            spec = Spec.parse(as_json(text, "the spec"))
        except Trouble:
            continue
        state = home.state() or {}
        over = state.get("state") in OVER and not state.get("lost")
        if not spec.watching.keep_up or not state.get("proven") or over or locked(home.lock_file):
            continue
        try:
            begin(home, text, resumed=True, tell=lambda _: None)
            resumed.append(home.name)
        except Trouble as trouble:
            troubles.append(f"{home.name}: {trouble}")
    put({"ok": not troubles, "resumed": resumed, "troubles": troubles})
    return 1 if troubles else 0


def kept(home: Home) -> bytes:
    """The spec of the last start. Raises Trouble where none is kept."""
    try:
        return home.spec_file.read_bytes()
    except OSError:
        raise Trouble(
            f"nothing is kept of {home.name} to start it again",
            step="read the spec",
            next="`glmspark up` does",
        ) from None


def _last(path: Path) -> str | None:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()[-1500:] or None
    return None
