"""What is asked of a node: ready, stop, status, clean. Each prints what it found or did as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .files import Home, Trouble, as_json, base, directories, locked, put, take_lock, write_json
from .life import OVER
from .proc import everyone, marked, send
from .sweep import Swept, close_lost, containers, sweep

_LEFT = "a rank was left behind by an agent that ended"


def connect(home: Home, request: Mapping[str, Any], timeout: float = 5.0) -> socket.socket | None:
    """A connection to the running agent that carries a request; None where none answers."""
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(timeout)
    try:
        os.chdir(home.path)  # a socket's path may be no longer than 107 bytes
        one.connect(home.socket.name)
        one.sendall(json.dumps(request).encode() + b"\n")
    except OSError:
        one.close()
        return None
    return one


def ask(home: Home, request: Mapping[str, Any], timeout: float = 5.0) -> dict[str, Any] | None:
    """The agent's state after a request; None where none answers."""
    connection = connect(home, request, timeout)
    if connection is None:
        return None
    with connection, connection.makefile("rb") as lines:
        try:
            return dict(json.loads(lines.readline())["state"])
        except (OSError, ValueError, KeyError):
            return None


def ready(home: Home, text: bytes) -> int:
    """The deployment is proven, the leash no longer binds. text: its new record, if any. Raises Trouble."""
    restarts = True
    if text.strip():
        record = as_json(text, "the record")
        write_json(home.record_file, record)
        # One that is kept although its canaries fail would never be proven again.
        restarts = not isinstance(record, dict) or record.get("state") in (None, "ready")
    state = ask(home, {"do": "ready", "restarts": restarts})
    if state is None or state["state"] != "ready":
        seen = ((state or home.state() or {}).get("reason") or {}).get("what")
        raise Trouble(f"{home.name} does not run there any more", step="let go of the leash", seen=seen)
    put({"ok": True, "state": state})
    return 0


def stop(home: Home, *, keep: bool) -> int:
    """Stop a deployment, whatever state it is in. keep: leave what is needed to start it again."""
    begin, swept, ending = time.monotonic(), Swept(), "nothing to stop"
    if home.path.is_dir():
        before = (home.state() or {}).get("state", "stopped")
        if locked(home.lock_file):
            ending = "stopped"
            _stop_agent(home)
        if take_lock(home.lock_file, 15.0) is None:
            raise Trouble(f"another command works on {home.name}", step="stop", next="try again in a moment")
        swept = sweep(home)
        close_lost(home, _LEFT, swept)
        if ending != "stopped" and (swept.any() or before not in OVER):
            ending = "cleaned up"
        if not keep:
            home.spec_file.unlink(missing_ok=True)
            home.guard_file.unlink(missing_ok=True)
    seconds = round(time.monotonic() - begin, 2)
    ok = not swept.stubborn
    put({"ok": ok, "ending": ending, "seconds": seconds, "swept": asdict(swept), "state": home.state()})
    return 0 if ok else 1


def _stop_agent(home: Home) -> None:
    """Ask the agent; one that does not go is killed, and its reaper cleans."""
    end, asked = time.monotonic() + 20.0, False
    while locked(home.lock_file) and time.monotonic() < end:
        asked = asked or ask(home, {"do": "stop"}, 2.0) is not None
        time.sleep(0.05)
    if locked(home.lock_file):
        known = (home.state() or {}).get("agent")
        for one in everyone():
            if [one.pid, one.started] == known:
                send(one, signal.SIGKILL)


def look(home: Home) -> dict[str, Any] | None:
    """Where a deployment stands now: its state, `lost` if nobody answers for what it says runs."""
    alive = locked(home.lock_file)
    state = (ask(home, {"do": "status"}) if alive else None) or home.state()
    if state is None:
        return None
    if not alive and state.get("state") not in OVER:
        state["state"] = "lost"
    return {**state, "alive": alive, "restartable": home.spec_file.exists()}


def status(name: str | None, *, record: bool) -> int:
    """Print the states of one deployment or of all, as a JSON list. record: each with its whole record."""
    found = []
    for home in [Home(base() / name)] if name else [Home(path) for path in directories()]:
        state = look(home)
        if state is not None and record:
            with contextlib.suppress(OSError, ValueError):
                state["record"] = json.loads(home.record_file.read_bytes())
        found += [state] if state is not None else []
    put(found)
    return 0


def clean(name: str | None, *, dry: bool) -> int:
    """Remove what deployments of this user left on this node and nobody answers for."""
    total, kept, has_docker = Swept(), [], True
    paths = {base() / name} if name else {*directories(), *(Path(one) for _, one in marked())}
    ran = (Home(path).state() or {} for path in paths)
    command = next((one["docker"] for one in ran if one.get("runtime") == "container"), ["docker"])
    try:
        labelled = containers(command)
        paths |= {Path(one) for _, one in labelled} if name is None else set()
    except Trouble as trouble:
        has_docker = False  # without an Engine no container runs; but there may be some that it would know
        if any((Home(path).state() or {}).get("container") for path in paths):
            total.stubborn.append(f"Docker: {trouble.fields['seen'] or trouble}")
    for path in sorted(paths):
        home = Home(path)
        if path.parent != base():
            continue  # another state directory's, or another user's
        lock = take_lock(home.lock_file) if path.is_dir() and not dry else None
        if lock is None and locked(home.lock_file):
            kept.append(home.name)
            continue
        swept = sweep(home, dry=dry, with_docker=has_docker)
        if not dry:
            close_lost(home, _LEFT, swept)
        for part, more in asdict(swept).items():
            getattr(total, part).extend(more)
        if lock is not None:
            os.close(lock)
    put({"ok": not total.stubborn, "dry_run": dry, "kept": sorted(kept), **asdict(total)})
    return 1 if total.stubborn else 0
