"""The watch over one run of the rank: its output, its processes, and why it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from .life import describe_end, reason_of
from .log import Log, evidence
from .peers import Peers
from .proc import Stat, living, oom_kills, title
from .rank import Rank
from .spec import Spec

VITAL = ("VLLM::", "ray::RayWorkerProc")
"""Beginnings of the titles of vLLM's engine core and workers. The rank is dead without any of them."""

_TOLD = re.compile(r"died unexpectedly \(exit code: (-?\d+)\)")  # vLLM, of a worker it lost
_ANOTHERS_END = 3
"""Exit code of our entry points for a rank that only follows another's end."""
_ASK_INSIDE, _LOGS_AGAIN = 10.0, 2.0
# seconds between looks inside a container; between two attempts to have its output
_BLAME = 2.0  # seconds in which the rank that was the first must say what happened to it


class RankWatch:
    """One run of a rank that has started. ended: called once, with the reason, when it has ended.

    keep: runs a coroutine beside everything else. family: its processes at the last look.
    """

    def __init__(
        self,
        spec: Spec,
        rank: Rank,
        log: Log,
        peers: Peers,
        *,
        keep: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        ended: Callable[[dict[str, Any]], None],
    ) -> None:
        self.spec, self.rank, self.log, self.peers = spec, rank, log, peers
        self.family: list[Stat] = []
        self._keep, self._ended = keep, ended
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._kills = oom_kills()
        self._vital: set[tuple[int, int]] = set()
        self._seen: set[tuple[int, int]] = set()
        self._asked = self._logs_asked = 0.0

    def begin(self) -> None:
        """Watch it from now on."""
        self._pump()
        self._tasks.append(self._keep(self._watch_main()))

    def close(self) -> None:
        """What happens to it from now on is no news; its output is still taken."""
        self._closed = True
        for task in self._tasks:
            task.cancel()

    async def _watch_main(self) -> None:
        """Wait for the end of its main process."""
        main = self.rank.main
        if main is not None:
            with contextlib.suppress(OSError):
                await _ended(os.pidfd_open(main.pid), lambda: _same(main))
        self.peers.announce(self._describe("", main.pid if main else 0, None))
        status, oom = await asyncio.to_thread(self.rank.status)
        await self.last_words(0.3)
        await self._blame("", main.pid if main else 0, status, oom=oom)

    async def _watch_vital(self, one: Stat, name: str) -> None:
        """Wait for the end of a process that vLLM cannot live without."""
        try:
            handle = os.pidfd_open(one.pid)
        except OSError:
            return  # it has ended between two looks: so has its rank, or will
        await _ended(handle, lambda: True)
        main = self.rank.main
        if main is not None and living(main.pid) is not None:  # else its end is the main process's
            self.peers.announce(self._describe(f"process {name}", one.pid, None))
            await asyncio.sleep(0.2)  # for vLLM to say what it knows of it
            told = next((found for line in reversed(self.log.tail) if (found := _TOLD.search(line))), None)
            if told is not None or living(main.pid) is not None:  # else both went down together
                await self._blame(f"process {name}", one.pid, int(told[1]) if told else None)

    async def _blame(self, name: str, pid: int, status: int | None, *, oom: bool = False) -> None:
        """Say what happened here, unless it followed from another rank's end."""
        if status == _ANOTHERS_END:
            self.peers.retract()
        end = time.monotonic() + _BLAME
        while time.monotonic() < end and not self._closed:  # whoever caused it is about to say how
            first = self.peers.first
            if status != _ANOTHERS_END and (first is None or first["rank"] == self.spec.rank):
                break
            await asyncio.sleep(0.05)
        first = self.peers.first
        elsewhere = first is not None and first["rank"] != self.spec.rank
        self._ended(dict(first) if elsewhere and first else self._describe(name, pid, status, oom=oom))

    def _describe(self, name: str, pid: int, status: int | None, *, oom: bool = False) -> dict[str, Any]:
        code, killer, words = describe_end(status)
        who = f"rank {self.spec.rank}'s {name}" if name else f"rank {self.spec.rank}"
        advice = f"`glmspark logs {self.spec.name} --rank {self.spec.rank}` shows what it printed"
        kills = oom_kills() - self._kills
        if oom or kills > 0:
            advice = f"the kernel's out-of-memory killer acted {kills} time(s) since the start: free memory"
        elif killer == "SIGKILL":
            advice = f"something outside killed it; `glmspark restart {self.spec.name}` starts it again"
        what = f"{who} on {self.spec.node} (pid {pid}) {words}"
        seen = "\n".join(evidence(list(self.log.tail))) or None
        return reason_of(
            what, self.spec, seen=seen, advice=advice, exit_code=code, signal=killer, kind="ended"
        )

    # -- its output ------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Move the rank's output into its log whenever there is any."""
        if self.rank.output is not None:
            os.set_blocking(self.rank.output, False)
            asyncio.get_running_loop().add_reader(self.rank.output, self._drain)

    def _drain(self) -> bool:
        """Take some of the output; False where there is none now."""
        handle = self.rank.output
        if handle is None:
            return False
        try:
            data = os.read(handle, 1 << 16)
        except BlockingIOError:
            return False
        if data:
            self.log.add(data)
        else:
            asyncio.get_running_loop().remove_reader(handle)
            self.rank.logs_ended()
        return bool(data)

    async def last_words(self, seconds: float) -> None:
        """Take output until it ends, at most so long."""
        end = time.monotonic() + seconds
        while self.rank.output is not None and time.monotonic() < end:
            if not self._drain():
                await asyncio.sleep(0.02)

    def output_ended(self) -> None:
        """Let go of output that has not ended: of a rank that was stopped."""
        if self.rank.output is not None:
            asyncio.get_running_loop().remove_reader(self.rank.output)
            self.rank.logs_ended()

    def follow_again(self, now: float) -> None:
        """Have a container's output again: the Engine was restarted, and the container lived on."""
        if self.rank.container and self.rank.output is None and now - self._logs_asked > _LOGS_AGAIN:
            self._logs_asked = now
            self.rank.follow_logs()
            self._pump()

    # -- its processes ---------------------------------------------------------------------------------------

    async def look(self, known: list[str]) -> dict[str, Any]:
        """Its processes now, as state.json has them; watches those that vLLM cannot live without.

        known: the shared memory that state.json has of it.
        """
        self.family = family = self.rank.family()
        titles = {one: name for one in family if (name := title(one.pid)).startswith(VITAL)}
        seen = {(one.pid, one.started) for one in titles}
        for one, name in titles.items():
            # Between fork and exec any child of vLLM bears its parent's title: only one seen twice counts.
            who = (one.pid, one.started)
            if who in self._seen and who not in self._vital:
                self._vital.add(who)
                self._tasks.append(self._keep(self._watch_vital(one, name)))
        self._seen = seen
        found: dict[str, Any] = {
            "family": sorted([one.pid, one.started] for one in family),
            "processes": sorted(titles.values()),
        }
        if self.rank.container is None or time.monotonic() - self._asked > _ASK_INSIDE:
            self._asked = time.monotonic()
            files = await asyncio.to_thread(self.rank.shared_memory, family)
            if self.rank.container is not None:  # it cannot be asked any more once it has ended
                files |= {path for path in known if Path(path).exists()}
            found["shared_memory"] = sorted(files)
        return found


def _same(one: Stat) -> bool:
    now = living(one.pid)
    return now is not None and now.started == one.started


async def _ended(handle: int, wanted: Callable[[], bool]) -> None:
    """Wait for the end of a process by its handle, which is closed then. wanted: asked once it is watched."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(handle, ended.set)
    try:
        if wanted():
            await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
