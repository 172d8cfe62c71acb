"""The model on every node: there, whole, and the same. Small ones that come with glmspark are copied."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from glmspark.config.recipe import ModelSource
from glmspark.errors import GlmsparkError
from glmspark.launch.partial_models import look_at_parts
from glmspark.launch.room import check_room
from glmspark.models import Checkpoint, inspect_checkpoint, locate
from glmspark.models.checkpoint import check_tokenizer
from glmspark.nodes.facts.account import Account
from glmspark.nodes.facts.checkpoint import Listing, listing
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.heads import laid_out, read_heads
from glmspark.nodes.listings import listings
from glmspark.nodes.node import Node
from glmspark.nodes.survey import Facts
from glmspark.nodes.transport import NodeError
from glmspark.weights.parts import Layout

__all__ = ["Model", "bring_model", "look_at_model", "place_of"]

_READ = 300.0
"""Seconds for reading the headers of a few hundred shards from a slow disk."""


@dataclass(frozen=True)
class Model:
    """A model as it lies on the nodes. checkpoint: with its directory there. listings: by node. local: where
    it can be copied from, None where it must lie on the nodes already. lacking: nodes without it."""

    checkpoint: Checkpoint
    listings: Mapping[str, Listing]
    wanted: Listing
    local: Path | None = None

    @property
    def lacking(self) -> tuple[str, ...]:
        """Nodes on which it is missing or other than wanted; none where nothing is copied."""
        if self.local is None:
            return ()
        return tuple(name for name, found in self.listings.items() if found != self.wanted)


def place_of(source: ModelSource, models: str, accounts: Mapping[str, Account]) -> str:
    """The directory of a model on every node.

    models: cluster.paths.models. package:NAME and hf:org/name@revision lie below it, path:/dir is itself.
    Raises GlmsparkError where ~ is not the same everywhere.
    """
    path = source.name if source.kind == "path" else posixpath.join(models, source.directory)
    if not path.startswith("~/"):
        return posixpath.normpath(path)
    homes = {posixpath.normpath(posixpath.join(one.home, path[2:])): node for node, one in accounts.items()}
    if len(homes) > 1:
        raise GlmsparkError(
            f"{path} is not the same directory on every node: {', '.join(homes)}",
            step="find the model",
            next="write an absolute path under paths.models in cluster.yaml",
        )
    return next(iter(homes))


async def look_at_model(fleet: Fleet, source: ModelSource, place: str, layout: Layout | None = None) -> Model:
    """What the nodes have of a model, and the checkpoint itself.

    layout: of its ranks; with one, nodes may each have the part that their rank needs. Raises CheckpointError
    for one that is not whole, GlmsparkError naming the node where one that cannot be copied is missing or
    other than the first node's.
    """
    local = locate(source) if source.kind == "package" else None
    found = await listings(fleet, place, whole=local is not None)
    if local is not None:
        checkpoint = inspect_checkpoint(local)
        check_tokenizer(local)
        wanted = local_listing(local)
        return Model(replace(checkpoint, directory=Path(place)), found, wanted, local)
    first = next(iter(found))
    for name, one in found.items():
        _check_there(name, one, place, source)
    if layout is not None and any(found[first].differs(one) for one in found.values()):
        parts = await look_at_parts(fleet, source, place, found, layout)
        if parts is not None:
            return Model(parts, found, found[first])
    for name, one in found.items():
        if differing := found[first].differs(one):
            raise GlmsparkError(
                f"{place} is not the same on {first} and {name}: {_some(differing)}",
                host=name,
                step="compare the models",
                next=f"copy it anew from the right one: rsync -aL --delete {place}/ to {name}",
            )
    checkpoint = await _inspect(fleet.nodes[first], found[first], place)
    return Model(checkpoint, found, found[first])


def _check_there(node: str, found: Listing, place: str, source: ModelSource) -> None:
    if not found.exists or not found.files:
        advice = f"put {source} there"
        if source.kind == "hf":
            advice = "`glmspark fetch RECIPE --cluster FILE` brings it to every node"
        raise GlmsparkError(f"{source} is not at {place}", host=node, step="find the model", next=advice)
    for one in found.files:
        if one.dangling or not one.digest:
            raise GlmsparkError(
                f"{place}/{one.name} "
                + ("is a link that leads nowhere" if one.dangling else "is unreadable"),
                host=node,
                step="find the model",
                seen=one.dangling or None,
                next="copy the model with its links resolved: rsync -aL",
            )


async def _inspect(node: Node, found: Listing, place: str) -> Checkpoint:
    """The checkpoint, from its headers alone: files of the right size whose data is a hole."""
    with laid_out(await read_heads(node, place, found)) as directory:
        try:
            checkpoint = inspect_checkpoint(directory)
            check_tokenizer(directory)
        except GlmsparkError as error:
            raise type(error)(
                error.message.replace(str(directory), place),
                host=node.host,
                step=error.step,
                seen=(error.seen or "").replace(str(directory), place) or None,
                next=error.next,
            ) from None
    return replace(checkpoint, directory=Path(place))


def local_listing(directory: Path) -> Listing:
    """The listing of a model on this machine, as `listing(whole=True)` has it of one on a node."""
    import subprocess
    import sys

    fact = listing(str(directory), whole=True)
    command = [sys.executable, *fact.command[1:]]
    return fact.parse(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


async def bring_model(
    fleet: Fleet, model: Model, facts: Mapping[str, Facts], told: Callable[[str], None] = lambda _: None
) -> None:
    """Copy a model to the nodes that lack it. GlmsparkError naming node and file where that fails.

    facts: of the nodes, for what is free there.
    """
    local = model.local
    if not model.lacking or local is None:
        return
    place = str(model.checkpoint.directory)
    for name in model.lacking:
        size = sum(one.size for one in model.wanted.files)
        check_room(name, facts[name], place, size, f"model {local.name}")
    told(f"copying {local.name} to {', '.join(model.lacking)}")

    async def bring(node: Node) -> None:
        await node.must(["mkdir", "-p", "--", place], f"make {place}")
        have = {one.name: one for one in model.listings[node.host].files}
        wanted = {one.name: one for one in model.wanted.files}
        for name in sorted(have.keys() - wanted.keys()):
            await node.must(["rm", "--", posixpath.join(place, name)], f"remove what is not {local.name}'s")
        # config.json last: without it a directory is no model.
        for name in sorted(wanted, key=lambda one: (one == "config.json", one)):
            if have.get(name) != wanted[name]:
                data = await asyncio.to_thread((local / name).read_bytes)
                await node.put(data, posixpath.join(place, name), timeout=_READ)

    for result in (await fleet.each(bring, names=model.lacking)).values():
        if isinstance(result, NodeError):
            raise result


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
