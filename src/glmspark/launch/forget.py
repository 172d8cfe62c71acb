"""Forgetting a deployment: its record on this machine goes, also where its nodes are gone for good."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from glmspark.errors import GlmsparkError, StateError, UsageError
from glmspark.launch import lock as locks
from glmspark.launch.agents import Agents
from glmspark.launch.cluster_ops import Place, is_alive, place_of
from glmspark.launch.leftovers import clean_record, look_at_record
from glmspark.launch.record import Home
from glmspark.nodes.doctor import addresses
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.transport import NodeError

__all__ = ["Forgotten", "forget"]


@dataclass(frozen=True)
class Forgotten:
    """What went along. here: removed on this machine; nodes: by node, or why it could not be asked."""

    here: Mapping[str, Any]
    nodes: Mapping[str, Mapping[str, Any] | NodeError]


async def forget(where: Home, *, dry_run: bool) -> Forgotten:
    """Remove what a deployment that does not run has left, then its record and logs on this machine.

    What it left on nodes that answer is removed; a node that does not is passed over. Raises UsageError where
    there is no such deployment, where it runs, or where something of it would not go; StateError where its
    directory cannot be removed.
    """
    if not where.path.is_dir():
        raise UsageError(f"there is no deployment {where.name}", next="`glmspark status` shows them all")
    lock = locks.take(where.lock_file)
    if lock is None:
        raise _runs(where.name, None)
    with lock:
        place = _place(where)
        nodes = {} if place is None else await _clean_nodes(place, where.name, dry_run=dry_run)
        swept = look_at_record(where) if dry_run else clean_record(where)
        stuck = [*swept.stubborn, *(text for one in nodes.values() for text in _stubborn(one))]
        if stuck:
            raise GlmsparkError(
                f"something of {where.name} would not go",
                step=f"forget {where.name}",
                seen="\n".join(stuck),
                next="see what holds it, then try again",
            )
        if not dry_run:
            _remove(where)
    here = {"dry_run": dry_run, "containers": [], **asdict(swept), "kept": [], "forgotten": [where.name]}
    return Forgotten(here, nodes)


def _place(where: Home) -> Place | None:
    """The nodes its record names; None where it names none, or cannot be read."""
    try:
        return place_of(where, where.read())
    except GlmsparkError:
        return None


async def _clean_nodes(place: Place, name: str, *, dry_run: bool) -> dict[str, Mapping[str, Any] | NodeError]:
    known = addresses(place.cluster)
    async with Fleet({node: known[node] for node in place.nodes}) as fleet:
        agents = Agents(fleet, name)
        asked = await agents.all_states(name)
        found = {node: one for node, one in asked.items() if not isinstance(one, NodeError)}
        if running := [node for node, states in found.items() if any(map(is_alive, states))]:
            raise _runs(name, ", ".join(running))
        return {**await agents.clean(dry_run=dry_run), **fleet.lost}


def _runs(name: str, nodes: str | None) -> UsageError:
    return UsageError(
        f"{name} runs{f' on {nodes}' if nodes else ', or another glmspark works on it'}",
        host=nodes,
        step=f"forget {name}",
        next=f"`glmspark down {name}` first",
    )


def _stubborn(found: Mapping[str, Any] | NodeError) -> list[str]:
    return [] if isinstance(found, NodeError) else list(found.get("stubborn", ()))


def _remove(where: Home) -> None:
    """The record first: without it the rest is nothing that anybody lists."""
    try:
        where.record_file.unlink(missing_ok=True)
        shutil.rmtree(where.path)
    except OSError as error:
        raise StateError(
            f"cannot remove {where.path}: {error.strerror}",
            step=f"forget {where.name}",
            next=f"remove the directory {where.path} by hand",
        ) from error
