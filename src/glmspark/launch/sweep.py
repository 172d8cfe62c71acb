"""Leaving nothing behind: processes, shared memory and sockets of a deployment, and nothing else.

vLLM's processes leave segments in /dev/shm and sockets in the temporary directory even when they are asked to
stop, and all of it when they are killed. What is ours is known from the marker in a process's environment,
from what those processes have mapped, and from the start's own scratch directory.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from glmspark.nodes import processes
from glmspark.nodes.processes import Identity

ID_VARIABLE = "GLMSPARK_DEPLOYMENT"
"""Environment variable with the id of the start a process belongs to."""
HOME_VARIABLE = "GLMSPARK_DEPLOYMENT_DIR"
"""Environment variable with the deployment's directory: with the lock held, whatever has it is left over."""

_TRACKER = "multiprocessing.resource_tracker"


@dataclass
class Swept:
    """What was found and removed. stubborn: what would not go."""

    processes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    stubborn: list[str] = field(default_factory=list)


def members(home: Path, known: Iterable[Identity] = ()) -> list[Identity]:
    """Living processes of a deployment, the supervisor not among them: by their mark, and those `known`."""
    found = set(processes.marked(HOME_VARIABLE, str(home)))
    found.update(one for one in known if processes.is_alive(one))
    return sorted((one for one in found if one.pid != os.getpid()), key=lambda one: one.pid)


def segments(identities: Iterable[Identity]) -> set[str]:
    """Shared memory files the processes have mapped or open now."""
    return processes.shared_memory(identity.pid for identity in identities)


def sweep(
    home: Path, scratch: Path | None, memory: Iterable[str] = (), known: Iterable[Identity] = ()
) -> Swept:
    """Kill what is left of a deployment and remove its files.

    memory, known: shared memory files and processes it was seen to have. A file that some living process
    still has mapped afterwards is another's and stays. To be called by who holds the deployment's lock.
    """
    result = Swept()
    left = members(home, known)
    files = set(memory) | segments(left)
    # Python's resource tracker goes by itself once its processes have gone, and takes their segments along.
    trackers = [one for one in left if _TRACKER in processes.command(one.pid)]
    _kill([one for one in left if one not in trackers], result)
    _kill(processes.wait_gone(trackers, 1.0), result)
    _remove_memory(files, result)
    if scratch is not None and _is_ours(scratch):
        shutil.rmtree(scratch, ignore_errors=True)
        (result.stubborn if scratch.exists() else result.files).append(str(scratch))
    return result


def _is_ours(scratch: Path) -> bool:
    """Whether a path from a record is a scratch directory indeed: it is removed with all that is in it."""
    try:
        status = scratch.lstat()
    except OSError:
        return False
    return (
        scratch.name.startswith("glmspark-") and stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    )


def named(one: Identity) -> str:
    """A process for people: its pid and the beginning of its command."""
    return f"{one.pid} ({processes.command(one.pid)[:80]})"


def _kill(identities: list[Identity], result: Swept) -> None:
    for identity in identities:
        name = named(identity)
        if processes.send(identity, signal.SIGKILL):
            result.processes.append(name)
    result.stubborn += [f"process {one.pid}" for one in processes.wait_gone(identities, 3.0)]


def _remove_memory(paths: set[str], result: Swept) -> None:
    mine = {path for path in paths if path.startswith(processes.SHARED_MEMORY) and os.path.lexists(path)}
    if not mine:
        return
    used = processes.shared_memory(stat.pid for stat in processes.all_stats())
    for path in sorted(mine - used):
        try:
            Path(path).unlink()
            result.files.append(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            result.stubborn.append(f"{path}: {error.strerror}")
