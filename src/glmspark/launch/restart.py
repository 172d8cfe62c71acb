"""Stopping a deployment and starting the very same again: the same commands on the same nodes."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

from glmspark.config.recipe import Recipe
from glmspark.errors import GlmsparkError, UsageError
from glmspark.launch import lock as locks
from glmspark.launch.agents import Agents
from glmspark.launch.cluster_ops import Place, failure_of, record_of, states_by_name, the_one
from glmspark.launch.cluster_start import Observer, Starter
from glmspark.launch.down import stop
from glmspark.launch.prepare import KEY_ADVICE, Request, Wanted
from glmspark.launch.record import Deployment, Home, State
from glmspark.launch.up import CancelledError, Outcome, bring_up

_PATIENCE = 5.0  # seconds to wait for another glmspark that works on the deployment


def restart_here(where: Home, observer: Observer, *, key: str | None = None) -> Outcome:
    """Stop a deployment of this machine, if it runs, and bring it up as its record says.

    key: the API key, if it asks for one and its own was forgotten with its end. Raises UsageError where there
    is no record or no key, and what `bring_up` does.
    """
    deployment = where.read()
    if deployment is None:
        raise UsageError(f"there is no deployment {where.name}", next="`glmspark up` starts one")
    key = _key(deployment, where, key)
    plan, endpoint = deployment.plan, deployment.endpoint
    request = Request(
        recipe=str(deployment.recipe["name"]),
        name=where.name,
        tp=plan["tp"],
        pp=plan["pp"],
        host=endpoint.host,
        port=endpoint.port,
        key=key,
        insecure=True,  # as it was, whatever that is
        keep=deployment.keep,
        timeout=deployment.limits.start,
        backend=plan.get("backend"),
    )
    recipe = Recipe.model_validate_json(json.dumps(deployment.recipe))
    observer.note(f"stopping {where.name}")
    stop(where)
    return bring_up(Wanted(request, recipe, where, plan["tp"], plan["pp"]), observer.update)


def restart_on_nodes(place: Place, observer: Observer, *, key: str | None = None) -> Deployment:
    """Stop a deployment on nodes, if it runs, start its ranks as the nodes have kept them, and prove it.

    Raises UsageError where a node has nothing kept or the key is not known, StartError where it does not come
    up again (nothing runs then), CancelledError on an interrupt, with how far it was.
    """
    lock = locks.take(place.home.lock_file, wait=_PATIENCE) if place.home is not None else None
    if place.home is not None and lock is None:
        raise GlmsparkError(f"another glmspark works on {place.home.name}", next="try again in a moment")
    going = _Going(place.name or "it")
    try:
        return asyncio.run(_restart(place, observer, key, going))
    except KeyboardInterrupt:
        raise going.interrupted() from None
    finally:
        if lock is not None:
            lock.release()


@dataclass
class _Going:
    """How far a restart is. deployment: from when its ranks are started again."""

    name: str
    stopping: bool = False
    deployment: Deployment | None = None

    def interrupted(self) -> CancelledError:
        """The error for an interrupt now."""
        again = f"`glmspark restart {self.name}` starts it again"
        if self.deployment is not None:
            left = self.deployment.reason
            if left is not None:
                return CancelledError(f"{self.name}: {left.what}", seen=left.seen, next=left.next)
            return CancelledError(f"interrupted: {self.name} was stopped while it started again", next=again)
        if self.stopping:
            return CancelledError(
                f"interrupted while {self.name} was being stopped: ranks that still run end with the others",
                next=f"`glmspark status {self.name}` shows them, {again}",
            )
        return CancelledError(f"interrupted before anything was done: {self.name} is as it was", next=again)


async def _restart(place: Place, observer: Observer, key: str | None, going: _Going) -> Deployment:
    observer.note(f"asking {', '.join(place.nodes)}")
    async with place.reached() as fleet:
        name = going.name = await the_one(place, fleet)
        states = (await states_by_name(place.named(name), fleet)).get(name, {})
        deployment = record_of(place, states)
    if deployment is None or not states:
        raise UsageError(f"these nodes know no deployment {name}", next="`glmspark up` starts one")
    nodes = tuple(rank.node for rank in deployment.ranks)
    lacking = [node for node in nodes if not _kept(states.get(node))]
    if lacking:
        raise UsageError(
            f"{', '.join(lacking)} has nothing kept of {name} to start it again",
            host=lacking[0],
            step=f"restart {name}",
            next="`glmspark up` with the same recipe and cluster file starts it anew",
        )
    key = _key(deployment, place.home, key)
    same = Place(place.cluster, nodes, name, place.home, deployment)
    async with same.reached() as fleet:
        for error in fleet.lost.values():
            raise error
        agents = Agents(fleet, name)
        observer.note(f"stopping {name}")
        going.stopping = True
        if (failure := failure_of(name, await agents.stop(keep=True))) is not None:
            raise failure
        _begin_anew(deployment)
        going.deployment = deployment
        if place.home is not None:
            place.home.prepare()
            if key is not None:
                place.home.write_key(key)
            place.home.write(deployment)
        observer.update(deployment, [])
        starter = Starter(deployment, agents, fleet, observer, home=place.home, key=key)
        await starter.run(agents.start_again)
    return deployment


def _kept(state: object) -> bool:
    return isinstance(state, dict) and bool(state.get("restartable"))


def _begin_anew(deployment: Deployment) -> None:
    deployment.created = time.time()
    deployment.verdicts, deployment.reason, deployment.proving = [], None, False
    deployment.turn(State.STARTING)
    for rank in deployment.ranks:
        rank.phase, rank.since = "not started", 0.0


def _key(deployment: Deployment, where: Home | None, given: str | None) -> str | None:
    """The API key it had. UsageError where it asks for one that is not known here."""
    if not deployment.endpoint.needs_key:
        return None
    key = given or (where.read_key() if where is not None else None)
    if key is None:
        raise UsageError(
            f"{deployment.name} asks for an API key, which is not known here",
            step=f"restart {deployment.name}",
            next=KEY_ADVICE.rpartition(";")[0],
        )
    return key
