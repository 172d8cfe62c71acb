"""What dies first when the kernel must kill: the engine, then the rest; never sshd, the guard or the agents.

Lowering a score takes root; raising that of one's own processes does not. What was there before is noted on
disk and put back at the end, also by the next guard if this one was killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable
from typing import Any

from .deployments import Deployed
from .files import Roots, read_json, say, write_whole
from .processes import Process, named, read_process

ENGINE, AGENT, LISTENER = 600, -500, -1000
"""oom_score_adj of an engine's processes, of their agent, of sshd and the guard itself. Per mille of memory
are added to how much a process holds (proc(5)): at 600 an engine goes before anything that holds less than
six tenths of memory more."""
_LOCK = (
    1 | 2 | 4
)  # MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT: what was used once stays; what never was is not fetched


def lock_memory() -> str | None:
    """Keep the guard's own memory from being swapped out or dropped; why not, where that is not allowed.

    Linux counts all pages of shared libraries unless they are locked as they are used, hence MCL_ONFAULT.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_LOCK) != 0:
        return f"mlockall: {os.strerror(ctypes.get_errno())}"
    return None


def listeners(processes: Iterable[Process], parents: Iterable[int]) -> list[Process]:
    """The sshd processes that wait for connections: those whose parent is no sshd. parents: pids of sshd."""
    known = set(parents)
    return [one for one in processes if one.parent not in known]


class Protection:
    """Sets the scores and puts them back. journal: file that holds those from before."""

    def __init__(self, roots: Roots, journal: str) -> None:
        self.refused: str | None = None
        self._roots = roots
        self._journal = journal
        self._before: dict[tuple[int, int], int] = {}
        self._set: dict[tuple[int, int], int] = {}
        self._recover()

    def _recover(self) -> None:
        found = read_json(self._journal)
        for one in found if isinstance(found, list) else ():
            if isinstance(one, list) and len(one) == 3 and all(isinstance(part, int) for part in one):
                process = read_process(self._roots, one[0])
                if process is not None and process.started == one[1]:
                    self._before[one[0], one[1]] = one[2]

    def apply(self, deployments: Iterable[Deployed]) -> None:
        """Give the processes of deployments and their agents their scores; cheap where nothing is new."""
        wanted: dict[tuple[int, int], tuple[int, Deployed]] = {}
        for one in deployments:
            for process in one.family:
                wanted[process.pid, process.started] = (ENGINE, one)
            if one.agent is not None and (agent := read_process(self._roots, one.agent)) is not None:
                wanted[agent.pid, agent.started] = (AGENT, one)
        for who, (score, one) in wanted.items():
            if self._set.get(who) == score:
                continue
            # The lists are a user's file: he has no say over others' processes, but root's in his container.
            if self._belongs(who[0], one.home) or (score == ENGINE and self._inside(who[0], one.container)):
                self._give(who, score, note=score == AGENT)
            else:
                self._set[who] = score
        self._set = {who: score for who, score in self._set.items() if who in wanted or score == LISTENER}

    def _belongs(self, pid: int, home: str) -> bool:
        try:
            return os.stat(self._roots.path(f"/proc/{pid}")).st_uid == os.stat(home).st_uid  # noqa: PTH116
        except OSError:
            return False

    def _inside(self, pid: int, container: str | None) -> bool:
        """Whether a process runs in a container: its control group bears the container's id."""
        try:
            return container is not None and container in self._roots.read(f"/proc/{pid}/cgroup")
        except OSError:
            return False

    def _of_system(self, one: Process) -> bool:
        """Whether it is root's, or of who runs this guard: by its name anybody's program can be an sshd."""
        try:
            return os.stat(self._roots.path(f"/proc/{one.pid}")).st_uid in (0, os.geteuid())  # noqa: PTH116
        except OSError:
            return False

    def apply_listeners(self) -> None:
        """Protect sshd's listening processes and the guard itself."""
        found = [one for one in named(self._roots, "sshd") if self._of_system(one)]
        me = read_process(self._roots, os.getpid())
        for one in [*listeners(found, [one.pid for one in found]), *([me] if me else [])]:
            who = (one.pid, one.started)
            if self._set.get(who) != LISTENER:
                self._give(who, LISTENER, note=one is not me)

    def _give(self, who: tuple[int, int], score: int, *, note: bool) -> None:
        """Set a score; note: remember what it was."""
        path = f"/proc/{who[0]}/oom_score_adj"
        try:
            before = int(self._roots.read(path))
            if note and who not in self._before and before != score:
                self._before[who] = before
                self._write()
            if before != score:
                _put(path, score)
            self._set[who] = score
        except PermissionError as error:
            self.refused = f"{path}: {error.strerror}"
            self._set[who] = score  # it would be refused the next time, too
        except (OSError, ValueError):
            pass  # it has just ended

    def _write(self) -> None:
        alive = {who: score for who, score in self._before.items() if self._is(who)}
        rows: list[Any] = [[pid, started, score] for (pid, started), score in alive.items()]
        self._before = alive
        try:
            write_whole(self._journal, repr(rows).encode() + b"\n", mode=0o600)
        except OSError as error:
            say(f"cannot note what is changed: {error}")

    def _is(self, who: tuple[int, int]) -> bool:
        found = read_process(self._roots, who[0])
        return found is not None and found.started == who[1]

    def restore(self) -> None:
        """Put back what was there before."""
        for who, score in self._before.items():
            if self._is(who):
                with contextlib.suppress(OSError):
                    _put(f"/proc/{who[0]}/oom_score_adj", score)
        self._before = {}
        with contextlib.suppress(OSError):
            os.unlink(self._journal)  # noqa: PTH108


def _put(path: str, score: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, str(score).encode())
    finally:
        os.close(handle)
