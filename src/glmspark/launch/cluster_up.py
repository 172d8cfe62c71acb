"""`glmspark up` on a cluster: look, plan, bring image and model, start, prove.

Every step can be interrupted, and whatever happens before the deployment is ready, no rank is left. Until
then the nodes' agents also stop by themselves when this process is gone; afterwards they need it no more.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glmspark.errors import GlmsparkError, UsageError
from glmspark.launch import lock as locks
from glmspark.launch.agents import Agents
from glmspark.launch.cluster_prepare import ClusterWanted, Prepared, check_port, prepare
from glmspark.launch.cluster_start import Observer, Starter
from glmspark.launch.images import bring_image
from glmspark.launch.lockfile import NAME, lock_of, read_lock, refuse_drift, write_lock
from glmspark.launch.neighbours import look_at_neighbours, refuse_taken, taken_ports
from glmspark.launch.node_models import bring_model
from glmspark.launch.record import Deployment, Home, State
from glmspark.launch.up import CancelledError, Outcome
from glmspark.launch.watching import judged_by
from glmspark.nodes.checks import Look
from glmspark.nodes.checks import State as Verdicts
from glmspark.nodes.checks.alike import same_nccl
from glmspark.nodes.doctor import addresses, expected_of
from glmspark.nodes.facts.nccl import Nccl, nccl
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.survey import Facts, survey
from glmspark.nodes.transport import NodeError

__all__ = ["LockFiles", "bring_up_cluster", "rehearse"]

_LOCK_PATIENCE = 5.0
_LEASH = 25.0  # seconds after which the agents of an `up` that was killed have stopped everything


_ALIVE = ("starting", "running", "ready", "restarting", "waiting", "stopping", "lost")
"""States of a node on which something of the deployment runs, or was left."""
_SERVES = ("ready", "restarting", "waiting")
"""Those of one that was proven: it serves, or comes back by itself."""


@dataclass(frozen=True)
class LockFiles:
    """write: where else to put the lock file of what is started. expect: one that it must agree with."""

    write: Path | None = None
    expect: Path | None = None

    def check(self) -> None:
        """UsageError where `write` names no place to write to: better now than after a long start."""
        if self.write is None:
            return
        directory = self.write.absolute().parent
        if self.write.is_dir() or not directory.is_dir() or not os.access(directory, os.W_OK):
            raise UsageError(
                f"{self.write} cannot be written",
                step="check the lock file",
                next="give --lock a file in a directory that can be written",
            )


def bring_up_cluster(wanted: ClusterWanted, observer: Observer, files: LockFiles = LockFiles()) -> Outcome:
    """Start what is wanted on the nodes and return when it is proven; at once when it already runs.

    Raises what preparing raises, before anything is started; StartError when it cannot be proven (everything
    is stopped then, unless the request says keep); CancelledError on an interrupt.
    """
    home = wanted.wanted.home
    lock = locks.take(home.lock_file, wait=_LOCK_PATIENCE)
    if lock is None:
        raise _busy(home)
    begun = time.time()
    with lock:
        try:
            return asyncio.run(_bring_up(wanted, observer, files))
        except KeyboardInterrupt:
            record = home.read()
            left = record.reason if record is not None and record.created >= begun else None
            if left is not None:
                raise CancelledError(f"{home.name}: {left.what}", seen=left.seen, next=left.next) from None
            raise CancelledError(
                f"interrupted: {home.name} was stopped while it started", next="`glmspark up` starts it again"
            ) from None
        finally:
            home.remove_if_empty()


def rehearse(wanted: ClusterWanted, files: LockFiles = LockFiles()) -> tuple[Prepared, Deployment]:
    """What `bring_up_cluster` would start, as a record with every rank's command. Changes nothing.

    Raises what it would raise before it changes anything, what drifted from a lock file among it.
    """
    expected = _expected(files)

    async def look() -> tuple[Prepared, Deployment]:
        known = addresses(wanted.cluster)
        async with Fleet({node.name: known[node.name] for node in wanted.nodes}) as fleet:
            prepared = await prepare(fleet, wanted)
            await check_port(fleet, prepared)
            if expected is not None:
                refuse_drift(expected, lock_of(prepared), files.expect)
            directories = await Agents(fleet, wanted.name).directories()
            image = prepared.images.id if prepared.images is not None else None
            deployment, _ = prepared.starts(
                directories, image or wanted.cluster.runtime.image, wanted.wanted.request.key
            )
            return prepared, deployment

    return asyncio.run(look())


def _expected(files: LockFiles) -> dict[str, Any] | None:
    expected = None if files.expect is None else read_lock(files.expect)
    files.check()
    return expected


def _busy(home: Home) -> GlmsparkError:
    running = home.read()
    if running is not None and running.cluster is None and not running.state.over:
        return UsageError(
            f"{home.name} already runs on this machine alone",
            step="look for a running deployment",
            next=f"`glmspark down {home.name}` first, or give this one a name of its own with --name",
        )
    return GlmsparkError(
        f"another glmspark works on {home.name}", step=f"lock {home.lock_file}", next="try again in a moment"
    )


async def _bring_up(wanted: ClusterWanted, observer: Observer, files: LockFiles) -> Outcome:
    home = wanted.wanted.home
    expected = _expected(files)
    observer.note(f"reaching {', '.join(node.name for node in wanted.nodes)}")
    known = addresses(wanted.cluster)
    async with Fleet({node.name: known[node.name] for node in wanted.nodes}) as fleet:
        for error in fleet.lost.values():
            raise error
        agents = Agents(fleet, wanted.name)
        already = await _running(wanted, agents, observer)
        if already is not None:
            return Outcome(already, already=True, cleaned=None)
        head = wanted.nodes[0].name
        neighbours = await look_at_neighbours(agents, head, wanted.name)
        asked = wanted.wanted.request
        refuse_taken(neighbours, asked.host, asked.port, node=head)
        prepared = await prepare(fleet, wanted, observer.note, taken=taken_ports(neighbours))
        await check_port(fleet, prepared)
        if expected is not None:
            refuse_drift(expected, lock_of(prepared), files.expect)
        image = None
        if prepared.images is not None:
            image = await bring_image(fleet, prepared.images, prepared.facts, observer.note)
        lock = lock_of(prepared, image=image, nccl=await _nccl(fleet, prepared, image))
        if expected is not None:  # now that the image's id and NCCL are known for certain
            refuse_drift(expected, lock, files.expect)
        await bring_model(fleet, prepared.model, prepared.facts, observer.note)
        key = wanted.wanted.request.key
        directories = await agents.directories()
        await _make_caches(fleet, prepared, directories)
        deployment, specs = prepared.starts(directories, image, key)
        for rank in prepared.plan.ranks:
            specs[rank.host] |= judged_by(prepared, rank)
        _write(home, deployment, key)
        write_lock(home.path / NAME, lock)
        observer.update(deployment, [])
        starter = Starter(deployment, agents, fleet, observer, home=home, key=key)
        await starter.run(lambda: agents.start(specs))
        if files.write is not None:
            write_lock(files.write, lock)
        return Outcome(deployment, already=False, cleaned=None)


def _write(home: Home, deployment: Deployment, key: str | None) -> None:
    home.prepare()
    if key is not None:
        home.write_key(key)
    home.write(deployment)


async def _running(wanted: ClusterWanted, agents: Agents, observer: Observer) -> Deployment | None:
    """The deployment if it already runs as wanted; what an `up` that is gone has left ends first.

    UsageError where it runs otherwise.
    """
    home = wanted.wanted.home
    end = time.monotonic() + _LEASH
    while True:
        states = {node: one for node, one in (await agents.status()).items() if one is not None}
        alive = {node for node, one in states.items() if one.get("state") in _ALIVE}
        if not alive:
            return None
        # Where an agent was killed the state on the node stays as it was.
        orphaned = any(states[node].get("alive") is False for node in alive)
        if not orphaned and all(states[node].get("state") in _SERVES for node in alive):
            break
        if orphaned or time.monotonic() >= end:
            observer.note("stopping what an earlier start left")
            await agents.stop()
            return None
        observer.note(f"waiting for an earlier start on {', '.join(sorted(alive))} to end")
        await asyncio.sleep(1.0)
    running = home.read()
    if running is not None and running.cluster is not None and running.state in (State.READY, State.UNPROVEN):
        if differences := wanted.differs(running):
            raise UsageError(
                f"{home.name} already runs, but not as asked: {'; '.join(differences)}",
                step="look for a running deployment",
                next=f"`glmspark down {home.name}` first, or give this one a name of its own with --name",
            )
        return running
    raise UsageError(
        f"{home.name} already runs on {', '.join(sorted(alive))}, and was not started from here",
        host=min(alive),
        step="look for a running deployment",
        next=f"`glmspark down {home.name} --cluster {wanted.path}` first, or choose another --name",
    )


async def _nccl(fleet: Fleet, prepared: Prepared, image: str | None) -> dict[str, Nccl]:
    """The NCCL that ranks will load, by node; nothing where they run on the CPU.

    Raises GlmsparkError where nodes would load different ones, or one that is known to hang.
    """
    if prepared.plan.platform != "cuda" or image is None:
        return {}
    expected = replace(expected_of(prepared.wanted.cluster), image=image)
    fact = nccl(expected.place)
    asked = await fleet.each(lambda node: survey(node, [fact], each=120, timeout=150))
    look = Look({name: one for name, one in asked.items() if isinstance(one, Facts)}, expected=expected)
    for verdict in same_nccl(look):
        if verdict.state is Verdicts.BLOCKED:
            raise GlmsparkError(
                f"{verdict.check}: {verdict.evidence}",
                host=verdict.node,
                step="check the nodes",
                next=verdict.remedy,
            )
    return {name: found for name, one in look.facts.items() if (found := one.get(fact)) is not None}


async def _make_caches(fleet: Fleet, prepared: Prepared, directories: dict[str, str]) -> None:
    """Docker would make what is missing, as root's."""
    seats = {seat.node: seat for seat in prepared.seats(directories)}
    made = await fleet.each(
        lambda node: node.must(["mkdir", "-p", "--", seats[node.host].cache], "make the cache directory")
    )
    for one in made.values():
        if isinstance(one, NodeError):
            raise one
