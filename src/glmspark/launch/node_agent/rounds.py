"""Rounds: a deployment that was proven starts again as a whole. What each agent does; rank 0's leads.

A round ends with a fault, of whichever rank: every agent keeps its evidence, stops its rank and says that it
is down. When all are, the leader decides: `go`, and the workers start, say that they are up, then rank 0
starts and is proven; or it ends for good. Agents stay connected all the while; a message of another round is
none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .files import Trouble, say
from .life import trouble_reason

if TYPE_CHECKING:
    from .agent import Agent

_EVIDENCE = 8.0  # seconds for stacks and all else


class Rounds:
    """The rounds of one agent. enabled: whether a fault begins another round instead of being the end."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.number = 0
        self.down = False
        self._enabled = False
        self._fault: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._go = asyncio.Event()
        self._step: asyncio.Task[Any] | None = None

    @property
    def enabled(self) -> bool:
        """Whether a fault is followed by another round."""
        return self._enabled

    @enabled.setter
    def enabled(self, wanted: bool) -> None:
        watching = self.agent.spec.watching
        self._enabled = wanted and (watching.times > 0 or watching.keep_up)

    def fault(self, cause: dict[str, Any], number: int | None = None) -> None:
        """A rank ended, or stands still. number: the round it was seen in, this one's if None."""
        if not self.enabled:
            self.agent.finish(cause)
        elif not self._fault.done() and (number is None or number >= self.number):
            self._fault.set_result(cause)
            self.agent.peers.tell({"fault": cause, "round": self.number})

    def met(self) -> None:
        """Another agent has come, perhaps again: it must know that this rank is down."""
        if self.down:
            self.agent.peers.tell({"down": self.number})

    def obey(self, message: Mapping[str, Any]) -> None:
        """What the leader says to a follower."""
        if "go" in message and self.down:
            self.number = int(message["go"])
            self.down = False
            self._go.set()
        elif message.get("proven") == self.number and self.agent.state["state"] == "restarting":
            self.agent.turn("ready", reason=None, **message["told"])
        elif "waiting" in message and self.agent.state["state"] == "restarting":
            self.agent.turn("waiting", waits_for=message["waiting"])

    async def live(self, over: asyncio.Future[dict[str, Any] | None]) -> dict[str, Any] | None:
        """One round after another until it is over; the reason of the end. Ends with nothing under way."""
        work: asyncio.Task[None] | None = None
        if self.agent.resumed:
            work = asyncio.create_task(self._again(None))
        while True:
            waits: set[asyncio.Future[Any]] = {over, self._fault}
            await asyncio.wait(waits | ({work} if work else set()), return_when=asyncio.FIRST_COMPLETED)
            if over.done() or self._fault.done():
                await _cancelled(work)
                await self._step_done()
                work = None
            if over.done():
                return over.result()
            if self._fault.done():
                cause = self._fault.result()
                self.number += 1
                self._fault = asyncio.get_running_loop().create_future()
                work = asyncio.create_task(self._again(cause))
            elif work is not None and work.done():
                work.result()
                work = None

    async def start_rank(self) -> None:
        """Start the rank, as a step that is never left half done. A failure is a fault of this round."""
        agent, number = self.agent, self.number
        agent.peers.forget()
        agent.log.note(f"start {number} of this rank after the first")
        self._step = asyncio.create_task(agent.start_rank())
        try:
            await asyncio.shield(self._step)
        except Trouble as trouble:
            self.fault(trouble_reason(trouble, agent.spec, kind="ended"), number)

    async def _step_done(self) -> None:
        """Wait for a start or stop of the rank that was left under way."""
        if self._step is not None:
            await asyncio.wait({self._step})

    async def _again(self, cause: dict[str, Any] | None) -> None:
        """From a fault to the next start."""
        agent = self.agent
        if cause is not None:
            say(f"round {self.number}: {cause['what']}")
            agent.turn("restarting", reason=cause)
            if agent.leader is not None:
                await agent.leader.stumbled(cause)
            self._step = asyncio.create_task(agent.stop_rank(cause, seconds=_EVIDENCE))
            await asyncio.shield(self._step)
        if agent.leader is not None:
            await agent.leader.bring_back(cause)
            return
        self._go.clear()
        self.down = True
        agent.peers.tell({"down": self.number})
        if not agent.peers.connected and agent.state["state"] != "waiting":
            agent.turn("waiting", waits_for=[0])
        await self._go.wait()
        if agent.state["state"] == "waiting":
            agent.turn("restarting", waits_for=None)
        await self.start_rank()
        agent.peers.tell({"up": self.number})


async def _cancelled(work: asyncio.Task[None] | None) -> None:
    if work is not None:
        work.cancel()
        await asyncio.wait({work})
