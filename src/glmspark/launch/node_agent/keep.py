"""Evidence: what a rank looked like when it stood still or ended, kept before it is stopped."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .files import Home, say
from .proc import Stat, living, send, title
from .readings import guard_places
from .spec import Spec

MOST, KEPT = 8 << 20, 5
"""Bytes of one piece of evidence; how many are kept."""
_STACKS, _PY_SPY, _WAIT = 24, 4.0, 0.6
# processes whose stacks are taken at most; seconds for one call of py-spy, and for stacks to be written
_TAIL = 1 << 18  # bytes of a log


def keep_evidence(
    home: Home, spec: Spec, cause: Mapping[str, Any], state: Mapping[str, Any], family: Sequence[Stat],
    metrics: str | None, *, seconds: float = 10.0,
) -> str | None:  # fmt: skip
    """Write what is known of a rank into a directory of its own; its path, None where the disk takes none.

    family: its processes, as long as they live. metrics: vLLM's, as last heard. It takes about `seconds`
    at most, and signals only processes that wait for it (SIGUSR2, where the engine has said that it does).
    """
    end = time.monotonic() + seconds
    place = home.path / "evidence" / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    parts: list[tuple[str, bytes]] = [
        ("cause.json", json.dumps(cause, indent=1).encode()),
        ("state.json", json.dumps({**state, "evidence": None}, indent=1).encode()),
        ("log-tail.txt", _tail(home.rank_log(spec.rank), _TAIL)),
        ("agent-tail.txt", _tail(home.logs / "agent.log", _TAIL // 4)),
    ]
    if metrics is not None:
        parts.append(("metrics.txt", metrics.encode()))
    for guard in guard_places():
        with contextlib.suppress(OSError):
            parts.append(("guard-state.json", (guard / "state.json").read_bytes()))
            parts.append(("guard-ring.jsonl", _ring(guard / "ring")))
            break
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        left = MOST
        # A cause is worth the most: whatever comes after it may find the disk full.
        for name, data in parts:
            left -= _write(place / name, data[-left:] if left > 0 else b"")
        _write(place / "stacks.txt", stacks(spec, family, end)[: max(0, left)])
        _forget(home.path / "evidence", but=place.name)
    except OSError as error:
        say(f"evidence was not kept whole: {error.strerror}")
        return str(place) if (place / "cause.json").exists() else None
    return str(place)


def _write(path: Path, data: bytes) -> int:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    return len(data)


def _forget(place: Path, *, but: str) -> None:
    """Only the last ones are kept, and always the newest, whatever the clock says."""
    for old in sorted(path for path in place.iterdir() if path.is_dir() and path.name != but)[: 1 - KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def _tail(path: Path, most: int) -> bytes:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - most))
        return file.read(most)
    return b""


def _ring(place: Path) -> bytes:
    """The last of the guard's ring, whole files first to last."""
    found: list[bytes] = []
    with contextlib.suppress(OSError):
        latest = sorted(place.iterdir(), key=lambda one: one.stat().st_mtime)[-2:]
        found += [_tail(path, 1 << 20) for path in latest]
    return b"".join(found)


# -- stacks ------------------------------------------------------------------------------------------------


def stacks(spec: Spec, family: Iterable[Stat], end: float) -> bytes:
    """What each process does: as the kernel has it, as Python has it, and by py-spy where it is installed."""
    chosen = [one for one in family if (now := living(one.pid)) is not None and now.started == one.started]
    chosen = chosen[:_STACKS]
    asked = [one for one in chosen if one.state not in "Tt" and _ask_stacks(spec, one)]
    tool = py_spy(spec)
    found = [b"".join((f"== {one.pid} {title(one.pid)}\n".encode(), kernel_view(one.pid))) for one in chosen]
    if asked:
        time.sleep(_WAIT)
    for number, one in enumerate(chosen):
        if (path := _stack_file(spec, one.pid)) is not None and (text := _tail(path, 1 << 19)):
            found[number] += b"-- by the process itself\n" + text + b"\n"
    for number, one in enumerate(chosen):
        left = min(_PY_SPY, end - time.monotonic())
        if tool is not None and left > 0.5:
            found[number] += b"-- py-spy\n" + _dump(tool, one.pid, left) + b"\n"
    return b"\n".join(found)


def kernel_view(pid: int) -> bytes:
    """State, waiting place and kernel stack of each thread, as far as this user may see them."""
    lines = []
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        wanted = ("State", "Threads", "VmRSS", "SigQ", "ShdPnd", "voluntary", "nonvoluntary", "TracerPid")
        lines += [line for line in status if line.startswith(wanted)]
        for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda one: int(one.name))[:64]:
            with contextlib.suppress(OSError):
                state = (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                waits = (task / "wchan").read_text(errors="replace").strip()
                lines.append(f"thread {task.name} {state} {waits}")
                lines += (task / "stack").read_text(errors="replace").splitlines()[:12]  # root alone may
    return "\n".join(lines).encode() + b"\n"


def _inner(pid: int) -> int | None:
    """A process's number in its innermost PID namespace; None where it does not catch SIGUSR2."""
    try:
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
            if ":\t" in line
        )
        caught = int(status["SigCgt"], 16)
        return int(status["NSpid"].split()[-1]) if caught >> (signal.SIGUSR2 - 1) & 1 else None
    except (OSError, ValueError, KeyError):
        return None


def _stack_file(spec: Spec, pid: int) -> Path | None:
    """Where a process of the engine writes its stacks, None where it has not said that it does."""
    inner = _inner(pid)
    if spec.scratch is None or inner is None:
        return None
    path = Path(spec.scratch) / f"stacks-{inner}"
    return path if path.is_file() and not path.is_symlink() else None


def _ask_stacks(spec: Spec, one: Stat) -> bool:
    return _stack_file(spec, one.pid) is not None and send(one, signal.SIGUSR2)


def py_spy(spec: Spec) -> str | None:
    """py-spy on the path, or beside the rank's own Python."""
    beside = Path(spec.argv[0]).parent / "py-spy"
    return shutil.which("py-spy") or (
        str(beside) if not spec.container and os.access(beside, os.X_OK) else None
    )


def _dump(tool: str, pid: int, seconds: float) -> bytes:
    argv = [tool, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(
            argv, capture_output=True, stdin=subprocess.DEVNULL, timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{error}".encode()
    return (done.stdout or done.stderr)[: 1 << 18]
