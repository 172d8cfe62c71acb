"""What deployments left on this machine, or on nodes, that nobody answers for: found, and removed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from glmspark.errors import GlmsparkError, UsageError
from glmspark.launch import lock as locks
from glmspark.launch import sweep as sweeping
from glmspark.launch.agents import Agents
from glmspark.launch.cluster_ops import Place
from glmspark.launch.reaper import clean
from glmspark.launch.record import Deployment, Home, deployments_dir, home, scratch_of
from glmspark.launch.sweep import Swept
from glmspark.nodes.transport import NodeError

HERE = "this machine"


def clean_here(name: str | None, *, dry_run: bool) -> dict[str, Any]:
    """Remove what deployments of this machine left that nobody answers for; what it was.

    With the keys containers, processes, files, stubborn (what would not go) and kept (what runs). dry_run:
    only look. Raises UsageError for a name that is not known.
    """
    total, kept = Swept(), []
    for where in [home(name)] if name is not None else _places():
        if name is not None and not where.path.is_dir():
            raise UsageError(f"there is no deployment {name}", next="`glmspark status` shows them all")
        lock = locks.take(where.lock_file) if not locks.held(where.lock_file) else None
        if lock is None:
            kept.append(where.name)
            continue
        with lock:
            swept = look_at_record(where) if dry_run else clean_record(where)
        for part in ("processes", "files", "stubborn"):
            getattr(total, part).extend(getattr(swept, part))
    return {"dry_run": dry_run, "containers": [], **asdict(total), "kept": kept}


def _places() -> list[Home]:
    with contextlib.suppress(FileNotFoundError):
        return [Home(path) for path in sorted(deployments_dir().iterdir()) if path.is_dir()]
    return []


def clean_record(where: Home) -> Swept:
    """Remove what a deployment left here, and close its record. To be called with its lock held."""
    if _on_nodes(where):
        return Swept()
    return clean(
        where,
        what="it was left behind by a glmspark that ended",
        next_step=f"`glmspark restart {where.name}` starts it again",
    )


def look_at_record(where: Home) -> Swept:
    """What `clean_record` would remove."""
    if _on_nodes(where):
        return Swept()
    deployment = _readable(where)
    relatives = deployment.relatives if deployment else []
    left = sweeping.members(where.path, relatives)
    memory = {*(deployment.shared_memory if deployment else []), *sweeping.segments(left)}
    scratch = Path(deployment.scratch) if deployment else scratch_of(where.path)
    files = sorted(path for path in memory if os.path.lexists(path))
    files += [str(scratch)] if scratch.is_dir() else []
    return Swept(processes=[sweeping.named(one) for one in left], files=files)


def _on_nodes(where: Home) -> bool:
    deployment = _readable(where)
    return deployment is not None and deployment.cluster is not None


def _readable(where: Home) -> Deployment | None:
    with contextlib.suppress(GlmsparkError):
        return where.read()
    return None


async def clean_nodes(place: Place, *, dry_run: bool) -> dict[str, Mapping[str, Any] | NodeError]:
    """The same on nodes, by node: one's deployment if the place has a name, else of all of this user there.

    Raises NodeError where none of the nodes can be reached.
    """
    async with place.reached() as fleet:
        found = await Agents(fleet, place.name).clean(dry_run=dry_run)
        return {**found, **fleet.lost}
