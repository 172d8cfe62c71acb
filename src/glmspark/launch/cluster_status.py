"""Where a deployment on nodes stands, from what their agents say."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from glmspark.errors import GlmsparkError
from glmspark.launch.cluster_ops import Place, States, record_of, states_by_name
from glmspark.launch.cluster_prove import forwarded
from glmspark.launch.record import Deployment, State
from glmspark.launch.status import LOST, Load, RankStatus, Status, load_of
from glmspark.nodes.facts.nvidia import GPUS
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.survey import survey
from glmspark.nodes.transport import NodeError

UNREACHED = "not reached"
_RUNS = ("starting", "running", "ready", "restarting", "stopping")


async def look_at(place: Place, *, sample: float = 0.5) -> list[Status]:
    """The status of a deployment on nodes, or of all there; empty where they know none.

    sample: seconds between two looks at the metrics. Raises NodeError where no node can be reached.
    """
    async with place.reached() as fleet:
        found = await states_by_name(place, fleet)
        return [await _status(place, fleet, name, states, sample) for name, states in sorted(found.items())]


async def _status(place: Place, fleet: Fleet, name: str, states: States, sample: float) -> Status:
    deployment = record_of(place, states)
    load = None
    state = overall(states, deployment)
    if deployment is not None and state in (State.READY, State.UNPROVEN):
        load = await _load(fleet, deployment, sample)
    found = status_of(name, states, deployment, load, now=time.time())
    if deployment is None or load is None or not load.running or not load.tokens_per_second:
        return found
    return replace(found, forecast=await _forecast(fleet, deployment, load))


async def _forecast(fleet: Fleet, deployment: Deployment, load: Load) -> dict[str, Any] | None:
    """Measured beside predicted speed, with what the nodes know of the likely causes."""
    from glmspark.launch.forecast import SAID, compared

    said, clocks = "", []
    head = fleet.nodes.get(deployment.ranks[0].node)
    with contextlib.suppress(NodeError):
        if head is not None:
            words = ["grep", "-a", "-o", "-m", "20", "-E", SAID, "--", deployment.ranks[0].log]
            said = (await head.run(words)).stdout
    looks = await fleet.each(lambda node: survey(node, [GPUS]))
    for facts in looks.values():
        if not isinstance(facts, NodeError):
            clocks += [gpu.clock for gpu in facts.get(GPUS) or () if gpu.clock]
    result = await asyncio.to_thread(
        compared,
        deployment,
        speed=load.tokens_per_second,
        running=load.running,
        tokens=load.tokens_per_step,
        said=said,
        clock=min(clocks, default=None),
    )
    return None if result is None else result.to_json()


async def _load(fleet: Fleet, deployment: Deployment, sample: float) -> Load | None:
    head = fleet.nodes.get(deployment.ranks[0].node)
    if head is None:
        return None
    with contextlib.suppress(NodeError):
        async with forwarded(head, deployment.endpoint) as endpoint:
            return await asyncio.to_thread(load_of, endpoint.url, sample)
    return None


def why_silent(place: Place) -> GlmsparkError | None:
    """Why a deployment on nodes does not answer, for code that waits; None where its nodes say it serves."""
    try:
        found = asyncio.run(look_at(place, sample=0.0))
    except GlmsparkError as error:
        return error
    status = next((one for one in found if one.name == place.name), None)
    return None if status is None else error_of(status)


def error_of(status: Status) -> GlmsparkError | None:
    """The error that a status amounts to for who asks the endpoint; None where it serves."""
    if status.state in (State.READY, State.UNPROVEN):
        return None
    reason = status.reason or {}
    again = f"`glmspark status {status.name}` says more, `glmspark restart {status.name}` starts it again"
    return GlmsparkError(
        f"{status.name} does not serve, it is {status.state}" + (f": {reason['what']}" if reason else ""),
        host=reason.get("node"),
        step=f"ask {status.endpoint}",
        seen=reason.get("seen"),
        next=reason.get("next") or again,
    )


def recorded(deployment: Deployment, directory: str) -> Status:
    """The status of a deployment that is over, from its record alone. directory: of the record."""
    ranks = [
        RankStatus(rank.rank, rank.node, None, False, "ended", [], 0, rank.log, [])
        for rank in deployment.ranks
    ]
    return Status(
        name=deployment.name,
        state=str(deployment.state),
        endpoint=deployment.endpoint.url,
        model=deployment.endpoint.model,
        created=deployment.created,
        uptime=None,
        ranks=ranks,
        load=None,
        verdicts=deployment.verdicts,
        reason=_left_reason(deployment),
        directory=directory,
    )


def overall(states: States, deployment: Deployment | None) -> str:
    """One word for all ranks together: the worst that is said of any."""
    known = [one for one in states.values() if isinstance(one, Mapping)]
    words = {str(one["state"]) for one in known}
    for word in ("waiting", "failed", LOST):  # while some wait, others that are gone are what they wait for
        if word in words:
            return word
    if "stopping" in words or ("stopped" in words and len(words) > 1):
        return "stopping"
    if words == {"stopped"}:
        return "failed" if _failed(deployment) else "stopped"
    if "restarting" in words:
        return "restarting"
    if words == {"ready"} and all(one is not None for one in states.values()):
        kept = deployment is not None and deployment.state is State.UNPROVEN
        return State.UNPROVEN if kept else State.READY
    return "starting"


def status_of(
    name: str, states: States, deployment: Deployment | None, load: Load | None, *, now: float
) -> Status:
    """The status of one deployment. Pure. now: Unix seconds."""
    state = overall(states, deployment)
    phases = {rank.node: rank.phase for rank in deployment.ranks} if deployment else {}
    ranks = [_rank(node, one, phases.get(node, "")) for node, one in states.items()]
    known = [one for one in states.values() if isinstance(one, Mapping)]
    ready = [one["since"] for one in states.values() if isinstance(one, Mapping) and one["state"] == "ready"]
    serving = state in (State.READY, State.UNPROVEN)
    endpoint = deployment.endpoint if deployment else None
    return Status(
        name=name,
        state=state,
        endpoint=endpoint.url if endpoint else "",
        model=endpoint.model if endpoint else "",
        created=min((one["created"] for one in states.values() if isinstance(one, Mapping)), default=0.0),
        uptime=max(0.0, now - max(ready)) if serving and ready else None,
        ranks=sorted(ranks, key=lambda one: one.rank),
        load=load,
        verdicts=deployment.verdicts if deployment else [],
        reason=(_left_reason(deployment) if _failed(deployment) and state == "failed" else None)
        or _reason(list(states.values()))
        or _left_reason(deployment),
        directory=next((one["directory"] for one in states.values() if isinstance(one, Mapping)), ""),
        restarts=max((list(one.get("restarts") or []) for one in known), key=len, default=[]),
        evidence={one["node"]: one["evidence"] for one in known if one.get("evidence")},
        admission=next((one["admission"] for one in known if one.get("admission")), None),
    )


def _rank(node: str, state: Mapping[str, Any] | NodeError | None, phase: str) -> RankStatus:
    if not isinstance(state, Mapping):
        why = f"{UNREACHED}: {state.message}" if isinstance(state, NodeError) else "nothing is known there"
        return RankStatus(-1, node, None, False, why, [], 0, "", [])
    word = str(state["state"])
    return RankStatus(
        rank=int(state["rank"]),
        node=node,
        pid=state.get("main"),
        alive=word in _RUNS and bool(state.get("alive")),
        phase=phase if word == "ready" and phase else word,
        processes=list(state.get("processes") or []),
        memory=int(state.get("memory") or 0),
        log=f"{state['directory']}/logs/rank-{state['rank']}.log",
        stopped=[f"pid {pid}" for pid in state.get("halted") or []],
    )


def _reason(states: Sequence[Mapping[str, Any] | NodeError | None]) -> dict[str, Any] | None:
    """The cause among the reasons: what a rank says of itself before what others say of it."""
    told = [(one, one["reason"]) for one in states if isinstance(one, Mapping) and one.get("reason")]
    own = [(one, why) for one, why in told if why.get("rank") == one["rank"]]
    found = min(own or told, key=lambda pair: float(pair[1].get("at") or 0), default=None)
    return dict(found[1]) if found else None


def _failed(deployment: Deployment | None) -> bool:
    """Whether `up` itself gave it up, and knows best why: from the ranks' logs and the canaries."""
    return deployment is not None and deployment.state is State.FAILED


def _left_reason(deployment: Deployment | None) -> dict[str, Any] | None:
    """What the record says."""
    reason = deployment.reason if deployment else None
    return reason.model_dump(mode="json") if reason else None
