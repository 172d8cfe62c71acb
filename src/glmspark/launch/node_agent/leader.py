"""The leader: rank 0's agent judges whether the deployment stands still, and leads it back as a whole."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import api as asked
from .door import Door
from .files import say
from .life import reason_of
from .readings import Reading
from .stall import Judge

if TYPE_CHECKING:
    from .agent import Agent

_TICK, _POLL = 0.5, 2.0  # seconds between two verdicts, and between two looks at vLLM's metrics
_DOWN = 60.0  # seconds for all ranks to be stopped
_HEALTH = 5.0  # seconds for /health while the engine is awaited
_SHOWN, _SEEN = 20, 1500  # restarts that state.json remembers, and characters of what was seen of each
_IN_VAIN = 3  # restarts of lost nodes that never come to be ready, at least, until it stays down
_RETRY = 30.0  # seconds after which clients are told to try again where nothing better is known


class Leader:
    """What rank 0's agent does beyond the others'. door: who answers on the API's port meanwhile."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.judge: Judge | None = None
        self._nodes = {0: agent.spec.node}
        self._down: dict[int, int] = {}
        self._up: dict[int, int] = {}
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stumbled: float | None = None
        api = agent.spec.api
        self.door = Door(api, self._why, self._retry) if api is not None else _NoDoor()

    # -- what the others say ---------------------------------------------------------------------------------

    def hear(self, rank: int, message: Mapping[str, Any]) -> None:
        """A follower's words."""
        if "seen" in message and self.judge is not None:
            self.judge.rank(rank, Reading.of(message["seen"]), time.monotonic())
        if "down" in message:
            self._down[rank] = int(message["down"])
        if "up" in message:
            self._up[rank] = int(message["up"])
        self._news.set()

    async def _until(self, said: dict[int, int], number: int | None, seconds: float | None) -> list[int]:
        """Wait until all followers that are connected, and all there are, said so; those that did not."""
        agent = self.agent
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            missing = [
                rank for rank in range(1, agent.spec.world)
                if rank not in agent.peers.connected or rank not in said
                or (number is not None and said[rank] != number)
            ]  # fmt: skip
            if not missing or (end is not None and time.monotonic() > end):
                return missing
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), 0.5)
            except asyncio.TimeoutError:  # noqa: UP041 - two kinds in Python 3.10
                for rank in [rank for rank in said if rank not in agent.peers.connected]:
                    del said[rank]  # whoever comes again says it again

    # -- while it serves -------------------------------------------------------------------------------------

    def serving(self) -> None:
        """It serves, and is proven: judge it from now on."""
        agent = self.agent
        if agent.spec.api is None or not agent.rounds.enabled:
            return
        nodes = {0: agent.spec.node, **{rank: peer.node for rank, peer in agent.peers.connected.items()}}
        self.judge = Judge(agent.spec.watching, nodes, time.monotonic())
        self._tasks = [agent.keep(work) for work in (self._poll(), self._ask(), self._watch())]

    def _serve_no_more(self) -> None:
        self.judge = None
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    def shift(self, seconds: float) -> None:
        """Time in which this agent itself did not run."""
        if self.judge is not None:
            self.judge.shift(seconds)

    async def _poll(self) -> None:
        api, judge = self.agent.spec.api, self.judge
        assert api is not None and judge is not None  # noqa: S101, PT018 - who begins this has looked
        while True:
            try:
                found, self.agent.metrics = await asyncio.to_thread(
                    asked.metrics, api, self.agent.spec.watching.api
                )
                judge.metrics(found, time.monotonic())
            except asked.ApiError as error:
                judge.silent(str(error))
            await asyncio.sleep(_POLL)

    async def _ask(self) -> None:
        """A request of one token now and then, while there is no other."""
        agent, judge = self.agent, self.judge
        api, bounds = agent.spec.api, agent.spec.watching
        assert api is not None and judge is not None  # noqa: S101, PT018
        while True:
            await asyncio.sleep(bounds.every)
            if not judge.idle or not agent.admission.is_open:
                continue
            try:
                await asyncio.to_thread(
                    asked.one_token, api, agent.spec.secrets.get("api_key"), bounds.canary
                )
                judge.canary(None, time.monotonic())
            except asked.ApiError as error:
                if agent.admission.is_open:  # it may have closed just now: then it was turned away
                    judge.canary(str(error), time.monotonic())

    async def _watch(self) -> None:
        agent, judge = self.agent, self.judge
        assert judge is not None  # noqa: S101
        while True:
            judge.rank(0, agent.reading(), time.monotonic())
            found = judge.verdict(time.monotonic())
            if found is not None:
                what = found.pop("what")
                advice = f"`glmspark explain` reads the evidence; `glmspark logs {agent.spec.name}`"
                agent.rounds.fault(reason_of(what, agent.spec, advice=advice, **found))
                return
            await asyncio.sleep(_TICK)

    # -- back again ------------------------------------------------------------------------------------------

    def _why(self) -> str:
        cause = (self.agent.state.get("reason") or {}).get("what") or "it is not there"
        return f"{self.agent.spec.name} restarts: {cause}"

    def _retry(self) -> float:
        """Seconds until it may be back, by how long it took last time."""
        took = [one["seconds"] for one in self.agent.state.get("restarts") or [] if one.get("seconds")]
        passed = time.monotonic() - self._stumbled if self._stumbled is not None else 0.0
        return max(2.0, took[-1] - passed) if took else _RETRY

    async def stumbled(self, cause: Mapping[str, Any]) -> None:
        """A round has ended: clients are answered here from now on."""
        say(f"clients get 503: {cause['what']}")
        self._serve_no_more()
        if self._stumbled is None:
            self._stumbled = time.monotonic()
        await self.door.open()

    async def bring_back(self, cause: dict[str, Any] | None) -> None:
        """From a stopped rank here to a proven deployment; where it must stay down it ends for good.

        cause: None for an agent that was itself gone.
        """
        agent, watching = self.agent, self.agent.spec.watching
        if self._stumbled is None:
            self._stumbled = time.monotonic()
        await self.door.open()
        waits = watching.keep_up and (cause is None or cause.get("kind") == "lost")
        missing = await self._until(self._down, None, 2.0 if waits else _DOWN)
        if missing and waits:
            agent.peers.tell({"waiting": missing})
            if agent.state["state"] != "waiting":
                agent.turn("waiting", waits_for=missing)
            missing = await self._until(self._down, None, None)
        if missing:
            agent.finish(
                self._lost(cause, f"rank {missing[0]} did not say within {_DOWN:g} s that it is down")
            )
            return
        entry = self._entry(cause)
        if entry is None:
            return
        if agent.state["state"] == "waiting":
            agent.turn("restarting", waits_for=None)
        number = agent.rounds.number = max([agent.rounds.number, *self._down.values()])
        self._down.clear()
        self._up.clear()
        agent.peers.tell({"go": number})
        if late := await self._until(self._up, number, watching.start):
            agent.rounds.fault(self._lost(cause, f"rank {late[0]} did not start again"))
            return
        await agent.rounds.start_rank()
        if why := await self._prove():
            agent.rounds.fault(reason_of(f"it did not come back: {why}", agent.spec, kind="unproven"), number)
            return
        self._back(entry)

    def _entry(self, cause: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """The restart that begins, noted; None where there were enough of them: then it is over."""
        agent, watching, now = self.agent, self.agent.spec.watching, time.time()
        lost = cause is None or cause.get("kind") == "lost"  # a node that comes and goes is no fault of ranks
        since = now - 60 * watching.minutes
        # What is still to come is of a clock that was wrong.
        counted = [at for at in agent.state.get("counted") or [] if since < at <= now]
        if lost and self._in_vain() >= max(watching.times, _IN_VAIN):
            what = cause["what"] if cause else f"the agent of rank 0 on {agent.spec.node} was gone"
            what = f"{what}; {self._in_vain()} starts in a row never came to be ready, so it stays down"
            agent.finish({**(cause or reason_of("", agent.spec, kind="lost")), "what": what})
            return None
        if not lost and len(counted) >= watching.times:
            often = "once" if len(counted) == 1 else f"{len(counted)} times"
            times = f"restarted {often} within {watching.minutes:g} min" if counted else ""
            what = f"{cause['what']}; {times or 'it is not to restart'}, so it stays down" if cause else ""
            agent.finish({**(cause or {}), "what": what})
            return None
        evidence = agent.state.get("evidence") if cause is not None else None
        short = {name: (cause or {}).get(name) for name in ("what", "rank", "node", "seen", "kind")}
        short["seen"] = str(short["seen"])[:_SEEN] if short["seen"] else None
        if cause is None:
            short |= {"what": f"the agent of rank 0 on {agent.spec.node} was gone", "kind": "lost"}
        entry = {"at": now, "cause": short, "evidence": evidence, "seconds": None}
        agent.state["restarts"] = [*(agent.state.get("restarts") or []), entry][-_SHOWN:]
        agent.state["restarted"] = (agent.state.get("restarted") or 0) + 1
        agent.state["counted"] = counted if lost else [*counted, now]
        return entry

    def _in_vain(self) -> int:
        """How many of the last restarts in a row never came to be ready: a load that takes its node down does
        so again after each reboot."""
        found = 0
        for one in reversed(self.agent.state.get("restarts") or []):
            if one.get("seconds") is not None:
                break
            found += 1
        return found

    def _lost(self, cause: Mapping[str, Any] | None, what: str) -> dict[str, Any]:
        seen = f"after: {cause['what']}" if cause is not None else None
        return reason_of(what, self.agent.spec, seen=seen, kind="unproven")

    async def _prove(self) -> str | None:
        """Wait for the engine, let it have the port, ask the canaries; why it is not proven, else None."""
        spec = self.agent.spec
        if spec.api is None:
            return None
        end = time.monotonic() + spec.watching.start
        while not self.door.engine_listens():
            if time.monotonic() > end:
                return f"the engine did not listen within {spec.watching.start:g} s"
            await asyncio.sleep(0.1)
        await self.door.close()
        while not await asyncio.to_thread(asked.healthy, spec.api, _HEALTH):
            if time.monotonic() > end:
                return f"the engine was not healthy within {spec.watching.start:g} s"
            await asyncio.sleep(0.2)
        for canary in spec.canaries:
            try:
                await asyncio.to_thread(asked.prove, spec.api, spec.secrets.get("api_key"), canary)
            except (asked.ApiError, re.error) as error:
                return f"a canary failed: {error}"
        return None

    def _back(self, entry: dict[str, Any]) -> None:
        agent = self.agent
        began, self._stumbled = self._stumbled, None
        entry["seconds"] = round(time.monotonic() - began, 1) if began is not None else None
        say(f"proven again after {entry['seconds']} s")
        told = {name: agent.state[name] for name in ("restarts", "restarted", "counted")}
        agent.peers.tell({"proven": agent.rounds.number, "told": told})
        agent.turn("ready", reason=None)
        self.serving()


class _NoDoor:
    """Of a deployment without an API of its own."""

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    def engine_listens(self) -> bool:
        """There is none to wait for."""
        return True
