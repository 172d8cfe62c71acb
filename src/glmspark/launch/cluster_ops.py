"""What can be done with a deployment on nodes after its start: look at it, read its logs, stop it, clean up.

From the machine that started it, whose record names the nodes, or from any other that has the cluster file:
the whole record lies on the nodes as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from glmspark.config.cluster import Cluster, load_cluster
from glmspark.errors import GlmsparkError, UsageError
from glmspark.launch import lock as locks
from glmspark.launch.agents import Agents, Logged, Stopped
from glmspark.launch.record import Deployment, Home, State, home, homes
from glmspark.nodes.doctor import addresses
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.transport import NodeError

States = Mapping[str, Mapping[str, Any] | NodeError | None]
"""By node: the agent's state.json, None where nothing is known of the deployment, or why it is not known."""


@dataclass(frozen=True)
class Place:
    """Where a deployment is. name: None for all there are. home: of its record on this machine, if any."""

    cluster: Cluster
    nodes: tuple[str, ...]
    name: str | None = None
    home: Home | None = None
    deployment: Deployment | None = None

    @contextlib.asynccontextmanager
    async def reached(self) -> AsyncIterator[Fleet]:
        """The nodes while the block lasts. Raises NodeError where none of them can be reached."""
        known = addresses(self.cluster)
        async with Fleet({name: known[name] for name in self.nodes}) as fleet:
            if not fleet.nodes:
                raise self._none_reached(next(iter(fleet.lost.values())))
            yield fleet

    def _none_reached(self, first: NodeError) -> NodeError:
        """The error for all nodes; where a record here is of them, with what to do if they are gone."""
        if self.home is not None:
            gone = f"if its nodes are gone for good: `glmspark clean {self.home.name} --forget`"
            first.next = f"{first.next}; {gone}" if first.next else gone
        return first

    def named(self, name: str) -> Place:
        """The same for one deployment."""
        return Place(self.cluster, self.nodes, name)


def place_of(where: Home, deployment: Deployment | None) -> Place | None:
    """Where the deployment of a record on this machine is; None where it runs on this machine itself."""
    if deployment is None or deployment.cluster is None:
        return None
    cluster = Cluster.model_validate_json(json.dumps(deployment.cluster.cluster))
    nodes = tuple(rank.node for rank in deployment.ranks)
    return Place(cluster, nodes, where.name, where, deployment)


def find(name: str | None, cluster: Path | None) -> Place | None:
    """Where a deployment is: on the nodes of the cluster file, or as this machine's record says.

    None for one that runs on this machine, or that it knows nothing of. Raises what reading the files does.
    """
    if cluster is None:
        where = home(name) if name is not None else None
        return place_of(where, where.read()) if where is not None else None
    loaded = load_cluster(cluster)
    if name is not None:
        known = place_of(home(name), home(name).read())
        if known is not None and known.cluster == loaded:
            return known
    return Place(loaded, tuple(node.name for node in loaded.nodes), name)


def clusters_known() -> list[tuple[Place, bool]]:
    """The clusters that records on this machine name, each once and without a deployment.

    With each, whether some deployment's record says that it runs there: else the cluster may be long gone.
    """
    found: list[tuple[Cluster, bool]] = []
    for where in homes():
        with contextlib.suppress(GlmsparkError):
            deployment = where.read()
            place = place_of(where, deployment)
            if place is None or deployment is None:
                continue
            runs = not deployment.state.over or any(one for known, one in found if known == place.cluster)
            found = [pair for pair in found if pair[0] != place.cluster] + [(place.cluster, runs)]
    return [(Place(one, tuple(node.name for node in one.nodes)), runs) for one, runs in found]


async def the_one(place: Place, fleet: Fleet) -> str:
    """The deployment meant: the one named, or the only one there is. Raises UsageError."""
    if place.name is not None:
        return place.name
    found = await states_by_name(place, fleet)
    alive = [name for name, states in found.items() if any(is_alive(one) for one in states.values())]
    chosen = alive or list(found)
    if len(chosen) != 1:
        raise UsageError(
            f"which one? there are {', '.join(sorted(chosen))}" if chosen else "nothing runs on these nodes",
            next="name it" if chosen else "`glmspark up RECIPE --cluster FILE` starts something",
        )
    return chosen[0]


def is_alive(state: Mapping[str, Any] | NodeError | None) -> bool:
    """Whether an agent answers for a rank."""
    return isinstance(state, Mapping) and bool(state.get("alive"))


async def states_by_name(place: Place, fleet: Fleet) -> dict[str, dict[str, Any]]:
    """What the nodes know, by deployment and node; of the one named, or of all."""
    found = await Agents(fleet).all_states(place.name, record=True)
    errors = {name: one for name, one in found.items() if isinstance(one, NodeError)}
    lost = {**fleet.lost, **errors}
    by_name: dict[str, dict[str, Any]] = {}
    for node, states in found.items():
        for state in [] if isinstance(states, NodeError) else states:
            by_name.setdefault(state["name"], {})[node] = state
    for known in by_name.values():
        world = max(int(one["world"]) for one in known.values())
        for node in place.nodes:
            if node not in known and (node in lost or len(known) < world):
                known[node] = lost.get(node)
    return by_name


def record_of(place: Place, states: States) -> Deployment | None:
    """The latest record of a deployment: the nodes' copies, and this machine's own if of the same start."""
    known = [one for one in states.values() if isinstance(one, Mapping)]
    own = place.deployment
    found = [own] if own is not None and any(one["id"] == own.id for one in known) else []
    for one in known:
        with contextlib.suppress(ValidationError):
            found.append(Deployment.model_validate(one.get("record")))
    return max(found, key=lambda one: one.created, default=None)


# -- stopping ----------------------------------------------------------------------------------------------


async def stop(place: Place, *, keep: bool = False) -> tuple[str, dict[str, Stopped]]:
    """Stop a deployment on all its nodes; its name, and what was found and done, by node.

    keep: leave what is needed to start it again. A node that cannot be reached is in the result: its rank
    ends by itself when the others are gone. The record on this machine, if any, is closed.
    """
    async with place.reached() as fleet:
        name = await the_one(place, fleet)
        stopped = await Agents(fleet, name).stop(keep=keep)
    if place.home is not None and not keep:
        await asyncio.to_thread(_close, place.home)
    return name, stopped


def _close(where: Home) -> None:
    """Say in this machine's record that it is over. `up`, if it still works on it, says so itself."""
    lock = locks.take(where.lock_file, wait=20.0)
    if lock is None:
        return
    with lock:
        where.forget_key()
        deployment = where.read()
        if deployment is not None and not deployment.state.over:
            deployment.close(State.STOPPED)
            where.write(deployment)


def running_on(cluster: Cluster) -> list[Home]:
    """Deployments of which this machine's records say that they run on exactly these nodes."""
    found = []
    for where in homes():
        with contextlib.suppress(GlmsparkError):
            deployment = where.read()
            place = place_of(where, deployment)
            if place is not None and deployment is not None and not deployment.state.over:
                found += [where] if place.cluster == cluster else []
    return found


def close_records(gone: Sequence[Home]) -> None:
    """Say in this machine's records that these deployments are over: their nodes are no more."""
    for where in gone:
        _close(where)


def failure_of(name: str, stopped: Mapping[str, Stopped]) -> GlmsparkError | None:
    """The error for nodes on which something may still run, None where all is stopped."""
    wrong = {node: one.error for node, one in stopped.items() if one.error is not None}
    if not wrong:
        return None
    missing = [node for node, one in stopped.items() if one.ending == "not reached"]
    return GlmsparkError(
        f"{name} may still run on {', '.join(wrong)}",
        host=", ".join(wrong),
        step=f"stop {name}",
        seen="\n".join(f"{node}: {error.message}" for node, error in wrong.items()),
        next="a rank whose peers are gone stops by itself within 10 s; then try again. Where nodes are gone "
        f"for good: `glmspark clean {name} --forget`"
        if missing
        else "see what holds it, then try again",
    )


# -- logs --------------------------------------------------------------------------------------------------

_STAMP = re.compile(r"\b\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?")


def interleave(logs: Sequence[Logged]) -> list[tuple[Logged, str]]:
    """Lines of several ranks in one order: by the times vLLM prints; a line without one follows the last."""
    marked: list[tuple[str, int, int, Logged, str]] = []
    for number, log in enumerate(sorted(logs, key=lambda one: one.rank)):
        stamp = ""
        for count, line in enumerate(log.lines):
            found = _STAMP.search(line)
            stamp = max(stamp, found[0]) if found else stamp
            marked.append((stamp, number, count, log, line))
    return [(log, line) for _, _, _, log, line in sorted(marked, key=lambda one: one[:3])]
