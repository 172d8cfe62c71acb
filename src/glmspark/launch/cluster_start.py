"""One start on a cluster, from the first rank to proven, and its end where it comes to nothing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from glmspark.errors import GlmsparkError
from glmspark.launch import reasons
from glmspark.launch.agents import Agents
from glmspark.launch.cluster_prove import prove_cluster
from glmspark.launch.cluster_watch import ClusterWatch
from glmspark.launch.record import Deployment, Home, Reason, State, Verdict
from glmspark.launch.up import StartError
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.transport import NodeError

__all__ = ["Observer", "Starter"]

_TICK = 0.25
_TELL = 4.0  # seconds for all nodes to say why they ended, once one has


class Observer(Protocol):
    """Who watches a start."""

    def update(self, deployment: Deployment, verdicts: list[Verdict]) -> None:
        """The record or the verdicts have changed."""

    def note(self, text: str) -> None:
        """What is being done before ranks are started."""


class Starter:
    """One start, from the first rank to proven.

    home: of the record on this machine, None where there is none. key: the API's, None without one.
    """

    def __init__(
        self,
        deployment: Deployment,
        agents: Agents,
        fleet: Fleet,
        observer: Observer,
        *,
        home: Home | None = None,
        key: str | None = None,
    ) -> None:
        self.home = home
        self.deployment = deployment
        self.agents = agents
        self.fleet = fleet
        self.observer = observer
        self.verdicts: list[Verdict] = []
        self.watch = ClusterWatch(deployment, began=time.monotonic())
        self._key = key

    async def run(self, begin: Callable[[], Awaitable[None]]) -> None:
        """Start (`begin` starts the ranks: `agents.start` or `agents.start_again`), follow, prove.

        Raises StartError, or asyncio's CancelledError, with nothing left running unless the record says keep.
        """
        try:
            await begin()
            reason = await self._follow()
            if reason is None:
                self.deployment.turn(State.READY)
                await self.agents.ready(self.deployment.model_dump(mode="json"))
        except asyncio.CancelledError:
            await self._end(None)
            raise
        except GlmsparkError as error:
            reason = reasons.of_error(error)
        except BaseException as error:  # whatever it is, the ranks must not outlive it
            await self._end(reasons.failed(f"glmspark itself failed: {error!r}"))
            raise
        if reason is not None:
            await self._fail(reason)
            raise StartError(self.deployment)
        self._write()
        self.observer.update(self.deployment, self.verdicts)

    def _write(self) -> None:
        if self.home is not None:
            self.home.write(self.deployment)

    async def _follow(self) -> Reason | None:
        """None when it is proven, else why not."""
        prover: asyncio.Task[list[Verdict]] | None = None
        proving_since = 0.0
        async with _events(self.agents.follow(leash=True)) as queue:
            try:
                while True:
                    await self._take(queue)
                    now = time.monotonic()
                    if self.watch.failing:
                        return await self._told(queue)
                    if prover is None and self.watch.serving:
                        self.deployment.proving, self.watch.changed = True, True
                        proving_since = now
                        prover = asyncio.create_task(self._prove())
                    if prover is not None and prover.done():
                        return self._judge(prover)
                    if prover is not None and now - proving_since > self.deployment.limits.prove:
                        return reasons.unproven(self.verdicts, None, prover_log="", head_log="its log")
                    if prover is None and (late := self.watch.late(now=now)):
                        return late
                    self._show()
            finally:
                if prover is not None:
                    prover.cancel()
                    await asyncio.gather(prover, return_exceptions=True)
                self.deployment.proving = False

    async def _take(self, queue: asyncio.Queue[Any]) -> None:
        """Take in what the nodes say within a moment."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TICK):
                while True:
                    self._feed(await queue.get())

    def _feed(self, event: Any) -> None:
        if isinstance(event, BaseException):
            raise event
        at = time.time()
        if event.kind == "log":
            self.watch.log(event.node, str(event.data.get("line", "")), at=at)
        elif event.kind == "state":
            self.watch.state(event.node, event.data, at=at)
        elif event.kind == "lost":
            self.watch.lost(event.node, str(event.data.get("what", "")))
        elif event.kind == "back":
            self.watch.back(event.node)

    async def _told(self, queue: asyncio.Queue[Any]) -> Reason:
        """The cause, once all nodes have said theirs or had the time to."""
        end = time.monotonic() + _TELL
        while not self.watch.all_told and time.monotonic() < end:
            try:
                await self._take(queue)
            except NodeError:
                break
        return self.watch.reason(at=time.time())

    async def _prove(self) -> list[Verdict]:
        def tell(verdicts: list[Verdict]) -> None:
            self.verdicts = list(verdicts)
            self.watch.changed = True

        head = self.fleet.nodes[self.deployment.ranks[0].node]
        return await prove_cluster(head, self.deployment, self._key, self.watch.census, tell)

    def _judge(self, prover: asyncio.Task[list[Verdict]]) -> Reason | None:
        error = prover.exception()
        if error is not None:
            if isinstance(error, GlmsparkError):
                return reasons.of_error(error)
            raise error
        self.verdicts = prover.result()
        self.deployment.verdicts = self.verdicts
        if all(verdict.passed for verdict in self.verdicts):
            return None
        return reasons.unproven(self.verdicts, 1, prover_log="", head_log=self.deployment.ranks[0].log)

    def _show(self) -> None:
        if self.watch.changed:
            self.watch.changed = False
            self._write()
            self.observer.update(self.deployment, self.verdicts)

    # -- the end ------------------------------------------------------------------------------------------

    async def _fail(self, reason: Reason) -> None:
        self.deployment.verdicts = self.deployment.verdicts or self.verdicts
        self.deployment.reason = reason
        if self.deployment.keep and self.deployment.verdicts:
            self.deployment.turn(State.UNPROVEN)
            with contextlib.suppress(GlmsparkError):
                await self.agents.ready(self.deployment.model_dump(mode="json"))
            self._write()
            self.observer.update(self.deployment, self.verdicts)
            return
        await self._end(reason)

    async def _end(self, reason: Reason | None) -> None:
        """Stop all ranks, whatever else goes wrong, and close the record."""
        stopping = asyncio.ensure_future(self._stop())
        while not stopping.done():  # a second Ctrl-C must not keep the first from its work
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(stopping)
        left = stopping.result()
        if left is not None and reason is not None:
            reason = reason.model_copy(update={"seen": f"{reason.seen}\n{left}" if reason.seen else left})
        state = State.STOPPED if reason is None else State.FAILED
        if left is not None and reason is None:
            reason = reasons.failed(
                "it was interrupted, and not all of it could be stopped from here",
                seen=left,
                next_step=f"`glmspark down {self.deployment.name}` tries again",
            )
        self.deployment.reason = reason
        self.deployment.close(state)
        if self.home is not None:
            self.home.forget_key()
        self._write()
        self.observer.update(self.deployment, self.verdicts)

    async def _stop(self) -> str | None:
        """What could not be stopped from here, None where all is stopped."""
        stopped = await self.agents.stop()
        return (
            "\n".join(
                f"{one.node} was not reached, and stops by itself: {one.error.message}"
                if one.ending == "not reached"
                else f"{one.node}: {one.error.message}"
                for one in stopped.values()
                if one.error is not None
            )
            or None
        )


@contextlib.asynccontextmanager
async def _events(source: AsyncIterator[Any]) -> AsyncIterator[asyncio.Queue[Any]]:
    """Events of an iterator in a queue, so that waiting for one can be given up; its error comes last."""
    queue: asyncio.Queue[Any] = asyncio.Queue()

    async def pump() -> None:
        try:
            async for event in source:
                queue.put_nowait(event)
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits for events must hear of it
            queue.put_nowait(error)

    task = asyncio.create_task(pump())
    try:
        yield queue
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
