"""Looking at a deployment again and again: its nodes and its engine, each in its own time.

Every node is asked by a task of its own, so one that does not answer delays nobody; what was last seen of it
stays, with its age.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx

from glmspark.errors import StateError
from glmspark.launch import lock as locks
from glmspark.launch.agents import Agents
from glmspark.launch.cluster_ops import Place, record_of
from glmspark.launch.cluster_prove import forwarded
from glmspark.launch.cluster_status import overall
from glmspark.launch.metrics import Sample, acceptance, parse_metrics, tokens_per_second
from glmspark.launch.monitor_view import EngineView, Gpu, Memory, NodeView, View
from glmspark.launch.record import Deployment, Home
from glmspark.launch.status import LOST
from glmspark.nodes.facts.memory_detail import MEMORY_DETAIL
from glmspark.nodes.facts.nvidia import GPUS
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.guards import GLANCE
from glmspark.nodes.node import Node
from glmspark.nodes.survey import survey
from glmspark.nodes.transport import NodeError

__all__ = ["EngineView", "Gpu", "Memory", "Monitor", "NodeView", "View"]

_ASK = 10.0  # seconds after which a node's silence is told
_ENOUGH = 10  # looks after which one at once is told without rates
_AGENT_EVERY = 5.0  # seconds: an answer of the agent's costs a Python's start on the node
_RUNNING = ("ready", "serving", "following")


class Monitor:
    """Used as `async with`. home: the deployment's record here, if any; place: its nodes, None for this
    machine.

    every: seconds between two looks at each part.
    """

    def __init__(self, name: str | None, home: Home | None, place: Place | None, *, every: float) -> None:
        self._name, self._home, self._place, self._every = name, home, place, every
        self._deployment: Deployment | None = None if home is None else home.read()
        names = ("this machine",) if place is None else place.nodes
        self._nodes = {name: NodeView(name) for name in names}
        self._states: dict[str, Any] = {}
        self._asked: dict[str, float] = {}
        self._counters: dict[str, tuple[float, Mapping[str, tuple[int, int]]]] = {}
        self._engine = EngineView()
        self._local: str | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._seen: dict[str, asyncio.Event] = {name: asyncio.Event() for name in (*names, "engine")}

    async def __aenter__(self) -> Monitor:
        from glmspark.nodes.doctor import addresses

        known = {"this machine": None} if self._place is None else addresses(self._place.cluster)
        for name in self._nodes:
            self._tasks.append(asyncio.create_task(self._follow_node(name, known[name])))
        self._tasks.append(asyncio.create_task(self._follow_engine(known)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def first(self, limit: float) -> None:
        """Wait until every part was seen twice (rates need two looks), or has failed, or time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await asyncio.gather(*(event.wait() for event in self._seen.values()))

    def view(self) -> View:
        """What is known now."""
        nodes = tuple(self._nodes.values())
        deployment = self._deployment
        if self._local is not None:
            state = self._local
        elif self._states:
            state = overall(self._states, deployment)
        else:
            state = "not known" if deployment is None else str(deployment.state)
        reason = deployment.reason.what if deployment is not None and deployment.reason is not None else None
        return View(
            time=time.time(),
            name=self._name or (self._home.name if self._home else "nothing runs"),
            state=state,
            model=deployment.endpoint.model if deployment else "",
            endpoint=deployment.endpoint.url if deployment else "",
            reason=reason if state in ("failed", "lost") else None,
            engine=self._engine,
            nodes=nodes,
        )

    # -- nodes ---------------------------------------------------------------------------------------------

    async def _follow_node(self, name: str, address: Any) -> None:
        looks = 0
        while True:
            begin = time.monotonic()
            try:
                async with contextlib.AsyncExitStack() as stack:
                    async with asyncio.timeout(_ASK * 2):
                        fleet = await stack.enter_async_context(Fleet({name: address}))
                    if name in fleet.lost:
                        raise fleet.lost[name]
                    agents = None if self._place is None else Agents(fleet, self._name)
                    while True:
                        begin = time.monotonic()
                        async with asyncio.timeout(_ASK):
                            await self._look(name, fleet.nodes[name], agents)
                        looks += 1
                        if looks > 1 and (self._rated(name) or looks >= _ENOUGH):
                            self._seen[name].set()
                        await asyncio.sleep(max(0.0, begin + self._every - time.monotonic()))
            except TimeoutError:
                self._nodes[name] = replace(self._nodes[name], error=f"no answer within {_ASK:g} s")
            except NodeError as error:
                self._nodes[name] = replace(self._nodes[name], error=error.message)
            except (ValueError, TypeError, LookupError, AttributeError) as error:  # of another version
                words = f"what it tells is not understood: {error!r}"
                self._nodes[name] = replace(self._nodes[name], error=words)
            self._seen[name].set()
            await asyncio.sleep(max(0.5, begin + self._every - time.monotonic()))

    async def _look(self, name: str, node: Node, agents: Agents | None) -> None:
        facts = await survey(node, (GLANCE, MEMORY_DETAIL, GPUS), timeout=_ASK)
        seen, memory, gpus = facts.get(GLANCE), facts.get(MEMORY_DETAIL), facts.get(GPUS)
        guard = seen.state if seen is not None and seen.runs and seen.state is not None else {}
        state = await self._state_of(name, agents)
        rank, phase = _rank_of(state)
        used = self._planned(rank) if phase in _RUNNING else {}
        self._nodes[name] = NodeView(
            name,
            at=time.monotonic(),
            rank=rank,
            phase=phase,
            memory=None
            if memory is None
            else Memory(
                memory.total, memory.free, memory.page_cache, used.get("weights", 0), used.get("kv", 0)
            ),
            gpus=_gpus(guard)
            or tuple(Gpu(one.utilization, one.power, one.clock, one.temperature) for one in gpus or ()),
            fabric=self._rates(name, guard),
            guard=None if not guard else f"{guard.get('phase')}, memory {guard.get('level')}",
            alerts=tuple(
                _plain(f"{one.get('kind')}: {one.get('what')}") for one in guard.get("alerts") or ()
            ),
            actions=tuple(
                _plain(f"{one.get('action')}: {one.get('why')}") for one in (guard.get("actions") or ())[-2:]
            ),
            restarts=len(state.get("restarts") or ()) if isinstance(state, Mapping) else 0,
            halted=tuple(state.get("halted") or ()) if isinstance(state, Mapping) else (),
        )

    async def _state_of(self, name: str, agents: Agents | None) -> Mapping[str, Any] | None:
        """The rank's state there: as its agent says, or as this machine's supervisor has recorded it."""
        if agents is None or self._place is None:
            if self._home is None:
                return None
            with contextlib.suppress(StateError):  # the next look reads it again
                self._deployment = self._home.read() or self._deployment
            self._local = _state_here(self._home, self._deployment)
            return {"local": self._local}
        if time.monotonic() - self._asked.get(name, -_AGENT_EVERY) < _AGENT_EVERY:
            return self._states.get(name)
        self._asked[name] = time.monotonic()
        found = (await agents.all_states(self._name, record=True)).get(name)
        if isinstance(found, NodeError):
            raise found
        states = [one for one in found or () if self._name is None or one["name"] == self._name]
        chosen: Mapping[str, Any] | None = next((one for one in states if one.get("alive")), None) or next(
            iter(states), None
        )
        self._states[name] = chosen
        if chosen is not None:
            self._name = self._name or str(chosen["name"])
            self._deployment = record_of(self._place, {name: chosen}) or self._deployment
        return chosen

    def _planned(self, rank: int | None) -> dict[str, int]:
        """Bytes of weights and KV cache of the rank on a node, of all ranks where it has them all."""
        plan = self._deployment.plan if self._deployment is not None else {}
        rows = [one for one in plan.get("ranks") or () if rank is None or one.get("rank") == rank]
        memories = [one.get("memory") or {} for one in rows]
        weights = sum(one.get("weights", 0) + one.get("drafter", 0) for one in memories)
        return {"weights": weights, "kv": sum(one.get("kv_cache", 0) for one in memories)}

    def _rated(self, name: str) -> bool:
        """Whether the node's links have rates, which takes two states of its guard; or will have none."""
        return self._nodes[name].guard is None or bool(self._nodes[name].fabric)

    def _rates(self, name: str, guard: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
        readings = guard.get("readings") or {}
        links = {**(readings.get("net") or {}), **(readings.get("rdma") or {})}
        counters = {
            link: (int(one.get("rx") or 0), int(one.get("tx") or 0))
            for link, one in links.items()
            if isinstance(one, Mapping)
        }
        at = float(guard.get("time") or 0.0)
        before = self._counters.get(name)
        if before is None or at > before[0]:
            self._counters[name] = (at, counters)
        if before is None or at <= before[0]:
            return dict(self._nodes[name].fabric)
        seconds = at - before[0]
        return {
            link: (max(0, rx - before[1][link][0]) / seconds, max(0, tx - before[1][link][1]) / seconds)
            for link, (rx, tx) in counters.items()
            if link in before[1]
        }

    # -- the engine ----------------------------------------------------------------------------------------

    async def _follow_engine(self, known: Mapping[str, Any]) -> None:
        while True:
            try:
                await self._engine_of(known)
            except (NodeError, httpx.HTTPError, OSError, ValueError, TimeoutError) as error:
                words = error.message if isinstance(error, NodeError) else str(error) or type(error).__name__
                self._engine = EngineView(error=words)
            self._seen["engine"].set()
            await asyncio.sleep(self._every)

    async def _engine_of(self, known: Mapping[str, Any]) -> None:
        """Ask the API's metrics again and again, until it does not answer."""
        deployment = self._deployment
        if deployment is None:
            return
        head = deployment.ranks[0].node
        if self._place is None:
            await self._ask(deployment.endpoint.url)
            return
        if head not in known:
            return
        async with Fleet({head: known[head]}) as fleet:
            if head in fleet.lost:
                raise fleet.lost[head]
            async with forwarded(fleet.nodes[head], deployment.endpoint) as endpoint:
                await self._ask(endpoint.url)

    async def _ask(self, endpoint: str) -> None:
        url = f"{endpoint.removesuffix('/v1')}/metrics"
        before: tuple[float, Sample] | None = None
        async with httpx.AsyncClient(trust_env=False, timeout=_ASK) as client:
            while True:
                answer = await client.get(url)
                answer.raise_for_status()
                at, sample = time.monotonic(), await asyncio.to_thread(parse_metrics, answer.text)
                self._engine = _engine(
                    sample, None if before is None else before[1], at - (before or (at,))[0]
                )
                if before is not None:
                    self._seen["engine"].set()
                before = (at, sample)
                await asyncio.sleep(self._every)


def _engine(now: Sample, before: Sample | None, seconds: float) -> EngineView:
    """What two readings say."""
    prompt = None
    if (
        before is not None
        and seconds > 0
        and now.prompt_tokens is not None
        and before.prompt_tokens is not None
    ):
        prompt = max(0.0, now.prompt_tokens - before.prompt_tokens) / seconds
    return EngineView(
        running=now.running,
        waiting=now.waiting,
        tokens=None if before is None else tokens_per_second(before, now, seconds),
        prompt=prompt,
        kv_usage=now.kv_usage,
        accepted=None if before is None else acceptance(before, now),
        finished=now.finished,
        preemptions=now.preemptions,
    )


def _state_here(home: Home, deployment: Deployment | None) -> str | None:
    """The state of a deployment that runs on this machine."""
    if deployment is None:
        return None
    if deployment.state.over or locks.held(home.lock_file):
        return str(deployment.state)
    return LOST


def _rank_of(state: Mapping[str, Any] | None) -> tuple[int | None, str]:
    """The rank a node has, and what it does; of this machine, which has them all, no number."""
    if state is None:
        return None, ""
    if "local" in state:
        return None, "ready" if state["local"] == "unproven" else str(state["local"])
    return int(state["rank"]), str(state["state"])


def _plain(text: str) -> str:
    """What is told of a node has no say over the terminal."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def _gpus(guard: Mapping[str, Any]) -> tuple[Gpu, ...]:
    rows = (guard.get("readings") or {}).get("gpu") or ()
    return tuple(
        Gpu(one.get("util"), one.get("power_w"), one.get("clock_mhz"), one.get("temp_c")) for one in rows
    )
