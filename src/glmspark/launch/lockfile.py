"""The lock file: everything that a deployment on a cluster was made of, so that it can be had again.

It is JSON for people to read and to keep under version control. `glmspark up --locked FILE` starts only what
agrees with it, and says what does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from glmspark import __version__
from glmspark.config.files import read_json, write_json
from glmspark.errors import GlmsparkError, UsageError
from glmspark.launch.cluster_prepare import Prepared
from glmspark.nodes.facts.docker import ENGINE
from glmspark.nodes.facts.host import KERNEL
from glmspark.nodes.facts.memory_detail import MEMORY_DETAIL
from glmspark.nodes.facts.nccl import Nccl
from glmspark.nodes.facts.nvidia import CUDA, GPUS
from glmspark.nodes.survey import Facts

__all__ = [
    "NAME",
    "DriftError",
    "drift",
    "lock_of",
    "patch_hashes",
    "read_lock",
    "refuse_drift",
    "write_lock",
]

NAME = "lock.json"
"""Beside the record of a deployment."""
VERSION = 1

_SHOWN = 20  # differences
_OPEN = (None, "")
"""Stands for what is not known yet: nothing can drift from it."""


class DriftError(GlmsparkError):
    """What would be started is not what the lock file says."""


def lock_of(
    prepared: Prepared, *, image: str | None = None, nccl: Mapping[str, Nccl] | None = None
) -> dict[str, Any]:
    """The lock of what was prepared. image: its id, once it is everywhere. nccl: by node, where it was asked.

    Everything in it is compared by `drift`, so it holds nothing that differs from start to start: neither
    ports nor free memory.
    """
    plan, wanted = prepared.plan, prepared.wanted
    runtime = wanted.cluster.runtime
    source = wanted.wanted.recipe.model.source
    return {
        "lock": VERSION,
        "glmspark": __version__,
        "patches": patch_hashes(),
        "recipe": wanted.wanted.recipe_data(),
        "layout": {"tp": plan.tp, "pp": plan.pp, "backend": plan.backend},
        "engine_arguments": dict(plan.flags),
        "environment": dict(plan.env),
        "model": {
            "source": str(source),
            "directory": plan.model_dir,
            "files": {one.name: [one.size, one.digest] for one in prepared.model.wanted.files},
        },
        "runtime": {
            "kind": runtime.kind,
            "image": runtime.image,
            "id": image or (prepared.images.id if prepared.images is not None else None),
            "python": runtime.python,
            "venv": runtime.venv,
            "engine": next((vars(one) for one in prepared.engines.values()), None),
            "mounts": list(runtime.mounts),
        },
        "nodes": {
            rank.host: {
                "rank": rank.rank,
                "fabric": [[link.interface, str(link.address), link.hca] for link in node.fabric],
                **_machine(prepared.facts[rank.host], (nccl or {}).get(rank.host)),
            }
            for rank, node in zip(plan.ranks, wanted.nodes, strict=True)
        },
    }


def _machine(facts: Facts, nccl: Nccl | None) -> dict[str, Any]:
    kernel, gpus, engine = facts.get(KERNEL), facts.get(GPUS), facts.get(ENGINE)
    memory = facts.get(MEMORY_DETAIL)
    return {
        "kernel": None if kernel is None else f"{kernel.release} {kernel.arch}",
        "gpu": gpus[0].name if gpus else None,
        "driver": gpus[0].driver if gpus else None,
        "cuda": facts.get(CUDA),
        "docker": engine.version if engine is not None else None,
        "memory": None if memory is None else memory.total,
        "nccl": None if nccl is None else f"{nccl.version} {nccl.build}",
    }


def patch_hashes() -> dict[str, str]:
    """SHA-256 of the source of every patch of the engine plugin, by the patch's name."""
    import inspect
    import sys

    from glmspark.engine.registry import PATCHES

    found = {}
    for patch in PATCHES:
        module = sys.modules[patch.apply.__module__]
        found[patch.name] = hashlib.sha256(inspect.getsource(module).encode()).hexdigest()
    return found


def drift(locked: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """In what a lock and what was found differ, one sentence each, by the place in the file.

    What is unknown on either side does not count.
    """
    return list(_differences("", locked, found))


def _differences(place: str, locked: Any, found: Any) -> Iterator[str]:
    if locked in _OPEN or found in _OPEN or locked == found:
        return
    if isinstance(locked, Mapping) and isinstance(found, Mapping):
        for name in [*locked, *(name for name in found if name not in locked)]:
            here = f"{place}.{name}" if place else str(name)
            if name not in found:
                if locked[name] not in _OPEN:
                    yield f"{here} is {_short(locked[name])} in the lock file, and there is none now"
            elif name not in locked:
                if found[name] not in _OPEN:
                    yield f"{here} is {_short(found[name])} now, and there is none in the lock file"
            else:
                yield from _differences(here, locked[name], found[name])
        return
    yield f"{place} is {_short(found)}, the lock file says {_short(locked)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def refuse_drift(locked: Mapping[str, Any], found: Mapping[str, Any], path: Path | None) -> None:
    """Raises DriftError, naming all that differs, unless what was found is what the lock says."""
    differing = drift(locked, found)
    if not differing:
        return
    more = len(differing) - _SHOWN
    nodes = dict.fromkeys(one.split(".")[1] for one in differing if one.startswith("nodes."))
    raise DriftError(
        f"{len(differing)} thing{'s are' if len(differing) > 1 else ' is'} not as in {path}: {differing[0]}",
        host=", ".join(nodes) or None,
        step="compare with the lock file",
        seen="\n".join(differing[1:_SHOWN] + ([f"and {more} more"] if more > 0 else [])) or None,
        next="bring it back to what it was; or start without --locked, and write a new lock with --lock FILE",
    )


def read_lock(path: Path) -> dict[str, Any]:
    """The lock in a file. StateError where it cannot be read, UsageError where it is none of this version."""
    data = read_json(path)
    if not isinstance(data, dict) or data.get("lock") != VERSION:
        raise UsageError(
            f"{path} is not a lock file that this glmspark reads",
            step="read the lock file",
            seen=f"lock: {data.get('lock')}" if isinstance(data, dict) else None,
            next="`glmspark up --lock FILE` writes one",
        )
    return data


def write_lock(path: Path, lock: Mapping[str, Any]) -> None:
    """Write a lock. StateError where the disk does not take it."""
    write_json(path, dict(lock), mode=0o644)
