"""A model onto every node of a cluster: from the hub or from the node that has it, along the fabric."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from glmspark.config.cluster import Cluster
from glmspark.config.recipe import ModelSource
from glmspark.config.units import format_size
from glmspark.errors import GlmsparkError
from glmspark.models.errors import CheckpointError
from glmspark.models.inspection import Problem, Severity, inspect
from glmspark.nodes.facts.checkpoint import Listing
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.listings import listings
from glmspark.weights.hub import HubFiles
from glmspark.weights.spread import HubSource, Outcome, Plan, Progress, chain, spread

__all__ = ["Files", "Options", "fabric_addresses", "fetch", "pythons"]

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,250}", re.ASCII)


@dataclass(frozen=True)
class Options:
    """rate: bytes a second that each node sends at most. trusted: the fabric is, so nothing is encrypted.
    anyway: also a checkpoint that is known to be wrong. endpoint: another hub."""

    rate: int | None = None
    trusted: bool = False
    anyway: bool = False
    endpoint: str | None = None


@dataclass(frozen=True)
class Files:
    """Names and sizes of a model's files, and where they come from: the hub, or nodes that have them."""

    sizes: Mapping[str, int]
    hub: Mapping[str, HubSource] | None
    headers: Mapping[str, str]
    first: str


def fabric_addresses(cluster: Cluster) -> dict[str, str]:
    """Each node's own address on the fabric. Raises GlmsparkError where one of several has none."""
    found: dict[str, str] = {}
    for node in cluster.nodes:
        if node.fabric:
            found[node.name] = str(node.fabric[0].address.ip)
        elif len(cluster.nodes) == 1:
            found[node.name] = "127.0.0.1"
        else:
            raise GlmsparkError(
                f"{node.name} has no fabric address",
                step="read cluster.yaml",
                next="`glmspark init` finds the fabric; or write nodes.fabric by hand",
            )
    return found


def pythons(cluster: Cluster) -> tuple[str, ...]:
    """Where a node may have a Python with blake3: the runtime's, and what this machine runs on."""
    runtime = cluster.runtime
    own = [f"{runtime.venv}/bin/python"] if runtime.venv and not runtime.venv.startswith("~") else []
    return tuple(dict.fromkeys([*own, *([runtime.python] if runtime.python else []), sys.executable]))


async def fetch(
    fleet: Fleet,
    cluster: Cluster,
    source: ModelSource,
    place: str,
    options: Options,
    *,
    told: Callable[[Mapping[str, Progress]], None] = lambda _: None,
    noted: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Bring a model to `place` on every node. Raises GlmsparkError; what has come by then is kept.

    told: progress by node. noted: what is being done before there is any.
    """
    if fleet.lost:
        raise next(iter(fleet.lost.values()))
    addresses = fabric_addresses(cluster)
    noted(f"looking for {source} on {len(fleet.nodes)} nodes")
    there = await listings(fleet, place)
    files = await _files(source, place, there, options, noted)
    order = [files.first, *(name for name in fleet.nodes if name != files.first)]
    plan = Plan(
        directory=place,
        pieces=chain(order, files.sizes, hub=files.hub),
        addresses=addresses,
        elsewhere=_elsewhere(source, cluster),
        rate=options.rate,
        trusted=options.trusted,
        headers=files.headers,
    )
    total = format_size(sum(files.sizes.values()))
    noted(f"{total} from {'the hub' if files.hub else files.first}, along {' → '.join(order)}")
    return await spread(fleet, plan, pythons=pythons(cluster), told=told)


async def _files(
    source: ModelSource,
    place: str,
    there: Mapping[str, Listing],
    options: Options,
    noted: Callable[[str], None],
) -> Files:
    """What the model consists of: as the hub says, else as the node that has most of it has it."""
    sizes = {node: {one.name: one.size for one in found.files} for node, found in there.items()}
    unreachable: CheckpointError | None = None
    if source.kind == "hf":
        try:
            noted(f"asking the hub about {source.name}")
            return await asyncio.to_thread(_of_hub, source, sizes, options)
        except CheckpointError as error:
            unreachable = error
    # No hub to ask: the node that has the most of it is right.
    best = max(there, key=lambda node: (_whole(there[node]), sum(sizes[node].values())))
    if not _whole(there[best]):
        if unreachable is not None:
            raise unreachable
        raise GlmsparkError(
            f"{source} is on no node",
            step="find the model",
            seen=f"no config.json in {place}",
            next="put it there on one node; the others get it from that one",
        )
    usable = {one.name: one.size for one in there[best].files if _PLAIN.fullmatch(one.name)}
    return Files(usable, None, {}, best)


def _whole(found: Listing) -> bool:
    return any(one.name == "config.json" for one in found.files) and not any(
        one.dangling for one in found.files
    )


def _of_hub(source: ModelSource, sizes: Mapping[str, Mapping[str, int]], options: Options) -> Files:
    hub = HubFiles(source.name, str(source.revision), endpoint=options.endpoint)
    try:
        if not options.anyway:
            _refuse_wrong(hub, source)
        wanted = {name: file for name, file in hub.files.items() if _PLAIN.fullmatch(name)}

        def held(node: str) -> int:
            return sum(file.size for name, file in wanted.items() if sizes[node].get(name) == file.size)

        first = max(sizes, key=held)
        places = {name: HubSource(hub.url(name), file.sha256, file.blob) for name, file in wanted.items()}
        return Files({name: file.size for name, file in wanted.items()}, places, hub.headers, first)
    finally:
        hub.close()


def _refuse_wrong(hub: HubFiles, source: ModelSource) -> None:
    """Raises CheckpointError for a GLM checkpoint with errors: hundreds of gigabytes that cannot answer."""
    try:
        problems = inspect(hub).problems
    except CheckpointError as error:
        if "is not known" in error.message:
            return  # no GLM: a drafter, for which other rules hold
        raise
    errors: list[Problem] = [one for one in problems if one.severity is Severity.ERROR]
    if errors:
        raise GlmsparkError(
            f"{source} has {len(errors)} problems: {errors[0].seen}",
            step="inspect before moving",
            seen="\n".join(f"{one.rule}: {one.seen}" for one in errors),
            next=f"{errors[0].remedy}; `glmspark inspect {source}` says more; or --anyway",
        )


def _elsewhere(source: ModelSource, cluster: Cluster) -> tuple[str, ...]:
    """Where the files may lie on a node already: the hub's caches, and flat directories of usual names."""
    if source.kind != "hf":
        return ()
    owner, _, name = source.name.partition("/")
    cache = f"models--{owner}--{name}/snapshots/*"
    models = cluster.paths.models.rstrip("/")
    return (
        f"~/.cache/huggingface/hub/{cache}",
        f"/root/.cache/huggingface/hub/{cache}",
        f"{models}/hub/{cache}",
        f"{models}/{name}",
        f"{models}/{owner}--{name}",
        f"{models}/{owner}/{name}",
        str(Path("/models") / name),
    )
