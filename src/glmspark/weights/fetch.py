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
from glmspark.models.files import CheckpointFiles, LocalFiles
from glmspark.models.inspection import Inspection, Problem, Severity, inspect
from glmspark.models.inspection.content import INDEX
from glmspark.nodes.facts.checkpoint import Listing
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.heads import Heads, laid_out, read_heads
from glmspark.nodes.listings import listings
from glmspark.weights.hub import HubFiles
from glmspark.weights.parts import Layout, NodePart, chain_parts, is_part, node_parts
from glmspark.weights.spread import HubSource, Outcome, Plan, Progress, chain, spread
from glmspark.weights.ways import Ways, ways

__all__ = ["Files", "Options", "fetch", "parts_of", "pythons"]

_NOT_WHOLE = {
    "dangling-link", "experts-incomplete", "index-broken", "index-foreign", "index-missing-shard",
    "index-nowhere", "missing-tensors", "no-shards", "shard-broken", "shard-layout", "shard-overlap",
    "shard-truncated", "shard-unreadable",
}  # fmt: skip
"""Rules of inspect that a copy breaks which broke off, or is of two revisions."""
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,250}", re.ASCII)


@dataclass(frozen=True)
class Options:
    """rate: bytes a second that each node sends at most. trusted: the fabric is, so nothing is encrypted.
    anyway: also a checkpoint that is known to be wrong. endpoint: another hub. layout: for which each node
    stores what it needs and nothing else; None for all of the model on every node."""

    rate: int | None = None
    trusted: bool = False
    anyway: bool = False
    endpoint: str | None = None
    layout: Layout | None = None


@dataclass(frozen=True)
class Files:
    """Names and sizes of a model's files, and where they come from: the hub, or nodes that have them. found:
    what the checkpoint holds, where that was looked at."""

    sizes: Mapping[str, int]
    hub: Mapping[str, HubSource] | None
    headers: Mapping[str, str]
    first: str
    found: Inspection | None = None


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
    files = await _look(fleet, source, place, options, noted)
    way = ways(cluster, [files.first, *(name for name in fleet.nodes if name != files.first)])
    if options.layout is None:
        pieces = chain(way, files.sizes, hub=files.hub)
    else:
        parts = _parts(files, options.layout, source)
        pieces = chain_parts(way, files.sizes, parts, hub=files.hub)
    plan = Plan(
        directory=place,
        pieces=pieces,
        addresses=way.addresses,
        elsewhere=_elsewhere(source, cluster),
        rate=options.rate,
        trusted=options.trusted,
        headers=files.headers,
    )
    total = format_size(sum(files.sizes.values()))
    noted(f"{total} from {'the hub' if files.hub else files.first}, along {_along(way)}")
    return await spread(fleet, plan, pythons=pythons(cluster), told=told)


def _along(way: Ways) -> str:
    """The chain, or the directions of a ring, in words."""
    ends = [name for name in way.order if name not in way.before.values()]
    return " and ".join(" → ".join([*reversed(way.above(name)), name]) for name in ends)


async def parts_of(
    fleet: Fleet,
    source: ModelSource,
    place: str,
    options: Options,
    noted: Callable[[str], None] = lambda _: None,
) -> dict[str, NodePart]:
    """What `fetch` would have each node store for options.layout. Changes nothing; raises GlmsparkError."""
    assert options.layout is not None  # noqa: S101 - asked for
    return _parts(await _look(fleet, source, place, options, noted), options.layout, source)


def _parts(files: Files, layout: Layout, source: ModelSource) -> dict[str, NodePart]:
    if files.found is None:
        raise GlmsparkError(
            f"{source} is no GLM: which of its tensors a node needs is not known",
            step="divide the weights",
            next="fetch it without --only-needed",
        )
    return node_parts(files.found, layout, str(source))


async def _look(
    fleet: Fleet,
    source: ModelSource,
    place: str,
    options: Options,
    noted: Callable[[str], None],
) -> Files:
    if fleet.lost:
        raise next(iter(fleet.lost.values()))
    noted(f"looking for {source} on {len(fleet.nodes)} nodes")
    there = await listings(fleet, place)
    return await _files(fleet, source, place, there, options, noted)


async def _files(
    fleet: Fleet,
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
    able = sorted(
        (node for node in there if _whole(there[node])), key=lambda node: -sum(sizes[node].values())
    )
    if not able:
        if unreachable is not None:
            raise unreachable
        raise GlmsparkError(
            f"{source} is on no node",
            step="find the model",
            seen=f"no config.json in {place}",
            next="put it there on one node; the others get it from that one",
        )
    for best in able:
        usable = {one.name: one.size for one in there[best].files if _PLAIN.fullmatch(one.name)}
        if INDEX not in usable and options.layout is None:
            return Files(usable, None, {}, best)
        begun = await read_heads(fleet.nodes[best], place, there[best])
        if INDEX in begun and is_part(begun[INDEX][1]):
            continue
        found = await asyncio.to_thread(_inspected_heads, begun, best, place)
        if found is not None and not options.anyway:
            _refuse_broken(found, best, place)
        return Files(usable, None, {}, best, found)
    raise GlmsparkError(
        f"no node has all of {source}: {able[0]} has a part of it",
        step="find the model",
        seen=unreachable.message if unreachable is not None else None,
        next="what lies on the nodes stays; the rest comes from the hub, or from a whole copy at "
        f"{place} on one of them",
    )


def _inspected_heads(begun: Heads, node: str, place: str) -> Inspection | None:
    """What a checkpoint on a node holds; None for what is no GLM."""
    with laid_out(begun) as directory:
        try:
            return _inspected(LocalFiles(directory))
        except CheckpointError as error:
            error.message = error.message.replace(str(directory), place)
            error.host = node
            raise


def _refuse_broken(found: Inspection, node: str, place: str) -> None:
    """Raises GlmsparkError for a copy that is not whole, before every node has it so. Its headers alone are
    known: what its values say (scales) is not looked at."""
    if errors := [one for one in found.problems if one.severity is Severity.ERROR and one.rule in _NOT_WHOLE]:
        raise GlmsparkError(
            f"{place} is not whole: {errors[0].seen}",
            host=node,
            step="inspect before moving",
            seen="\n".join(f"{one.rule}: {one.seen}" for one in errors),
            next=f"{errors[0].remedy}; `glmspark inspect {place}` there says more; or --anyway",
        )


def _whole(found: Listing) -> bool:
    return any(one.name == "config.json" for one in found.files) and not any(
        one.dangling for one in found.files
    )


def _of_hub(source: ModelSource, sizes: Mapping[str, Mapping[str, int]], options: Options) -> Files:
    hub = HubFiles(source.name, str(source.revision), endpoint=options.endpoint)
    try:
        found = _inspected(hub)
        if found is not None and found.content.part is not None:
            raise GlmsparkError(
                f"{source} is a part of a model: {found.content.part}",
                step="inspect before moving",
                next="fetch the whole model; --only-needed divides it",
            )
        if found is not None and not options.anyway:
            _refuse_wrong(found, source)
        wanted = {name: file for name, file in hub.files.items() if _PLAIN.fullmatch(name)}
        unknown = [name for name, file in wanted.items() if file.sha256 is None and file.blob is None]
        if unknown and not options.anyway:
            raise GlmsparkError(
                f"the hub states no hash of {len(unknown)} files of {source}: whether they come whole, and "
                "whether those that are there are right, could not be told",
                step="ask the hub",
                seen=", ".join(sorted(unknown)[:3]),
                next="ask a hub that states them (HF_ENDPOINT); or --anyway: only sizes are compared then",
            )

        def held(node: str) -> int:
            return sum(file.size for name, file in wanted.items() if sizes[node].get(name) == file.size)

        first = max(sizes, key=held)
        places = {name: HubSource(hub.url(name), file.sha256, file.blob) for name, file in wanted.items()}
        return Files({name: file.size for name, file in wanted.items()}, places, hub.headers, first, found)
    finally:
        hub.close()


def _inspected(files: CheckpointFiles) -> Inspection | None:
    """What a checkpoint holds; None for what is no GLM: a drafter, for which other rules hold."""
    try:
        return inspect(files)
    except CheckpointError as error:
        if "is not known" in error.message:
            return None
        raise


def _refuse_wrong(found: Inspection, source: ModelSource) -> None:
    """Raises GlmsparkError for a GLM checkpoint with errors: hundreds of gigabytes that cannot answer."""
    errors: list[Problem] = [one for one in found.problems if one.severity is Severity.ERROR]
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
