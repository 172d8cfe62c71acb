"""The processes below a ray node: kept together, and ended to the last with what they leave in shared memory.

`ray start` puts its processes into the background and ends. A child subreaper (prctl) gets them as children
all the same, so they can be found, and no other process can be mistaken for one of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]

SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - where Linux has it
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TRACKER = "multiprocessing.resource_tracker"


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends. Linux only."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int) -> None:
    """Get SIGTERM when the process `parent`, which is this one's parent, ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has ended before the kernel was asked
        os.kill(os.getpid(), signal.SIGTERM)


def members() -> list[psutil.Process]:
    """Every living process below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def named(*names: str) -> list[psutil.Process]:
    """Those of `members` whose names begin so."""
    found = []
    for process in members():
        with contextlib.suppress(psutil.Error):
            if process.name().startswith(names):
                found.append(process)
    return found


def alive(process: psutil.Process) -> bool:
    """Whether a process still runs; one that has ended and waits for its parent does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def shared_memory(processes: list[psutil.Process]) -> set[Path]:
    """Files in shared memory that the processes have mapped."""
    found = set()
    for process in processes:
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
            for line in maps.splitlines():
                _, slash, path = line.partition(SHARED_MEMORY)
                if slash and not path.endswith(" (deleted)"):
                    found.add(Path(SHARED_MEMORY + path))
    return found


def sweep(directory: Path, known: set[Path] | None = None, limit: float = 2.0) -> list[str]:
    """End every process below this one and remove what they leave: shared memory, and `directory`.

    `known`: shared memory files they were seen to have. Returns what would not go within `limit` seconds.
    """
    files = set(known or ())
    deadline = time.monotonic() + limit
    left = members()
    while left and time.monotonic() < deadline:
        files |= shared_memory(left)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        reap(min(deadline, time.monotonic() + 0.3))
        left = members()
    reap(deadline)
    stubborn = [f"process {process.pid}" for process in left]
    for path in files:
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            stubborn.append(f"{path}: {error.strerror}")
    shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        stubborn.append(str(directory))
    return stubborn


def reap(deadline: float) -> None:
    """Take leave of this process's children until none is left, or until `deadline`."""
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.02)
