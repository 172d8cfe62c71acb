"""One image on every node, the same by its id: pulled once, then handed on to the others through SSH."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from glmspark.config.units import format_size
from glmspark.errors import GlmsparkError
from glmspark.launch.room import check_room
from glmspark.nodes.checks.alike import identity_of
from glmspark.nodes.facts.docker import ENGINE, IMAGES
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.node import Node
from glmspark.nodes.ssh import SshNode
from glmspark.nodes.streams import pour
from glmspark.nodes.survey import Facts
from glmspark.nodes.transport import NodeError

__all__ = ["Images", "bring_image", "image_at", "look_at_images", "pull", "save"]

_PULL = 3600.0
_STEP = "bring the image"


@dataclass(frozen=True)
class Images:
    """Where an image is. ids: by node, None where it is missing."""

    name: str
    ids: Mapping[str, str | None]

    @property
    def id(self) -> str | None:
        """The id it has wherever it is."""
        return next((one for one in self.ids.values() if one is not None), None)

    @property
    def source(self) -> str | None:
        """The first node that has it."""
        return next((node for node, one in self.ids.items() if one is not None), None)

    @property
    def missing(self) -> tuple[str, ...]:
        """Nodes without it."""
        return tuple(node for node, one in self.ids.items() if one is None)


def pull(name: str) -> list[str]:
    """Fetch an image from its registry."""
    return ["docker", "pull", "--quiet", name]


def save(name: str) -> list[str]:
    """Write an image to standard output, with its name."""
    return ["docker", "save", name]


def load() -> list[str]:
    """Read an image from standard input."""
    return ["docker", "load", "--quiet"]


def inspect(name: str) -> list[str]:
    """Print an image's id and size."""
    return ["docker", "image", "inspect", "--format", "{{.Id}} {{.Size}}", name]


def look_at_images(name: str, facts: Mapping[str, Facts]) -> Images:
    """Which nodes have an image. Raises GlmsparkError where it is not the same, or nobody can tell."""
    ids: dict[str, str | None] = {}
    for node, one in facts.items():
        images = one.get(IMAGES)
        if images is None:
            raise GlmsparkError(f"cannot list images: {one.problem(IMAGES)}", host=node, step=_STEP)
        ids[node] = identity_of(images, name)
    found = Images(name, ids)
    kinds: dict[str, list[str]] = {}
    for node, identity in ids.items():
        if identity is not None:
            kinds.setdefault(identity, []).append(node)
    if len(kinds) > 1:
        right = max(kinds.values(), key=len)  # of as many, the first: the head's
        few = [node for nodes in kinds.values() if nodes is not right for node in nodes]
        said = "; ".join(f"{identity[7:19]} on {', '.join(nodes)}" for identity, nodes in kinds.items())
        raise GlmsparkError(
            f"{name} is not the same image on every node: {said}",
            host=", ".join(few),
            step="compare the images",
            next=f"remove the wrong one there (docker image rm {name}); `up` then brings the right one",
        )
    return found


async def image_at(node: Node, name: str) -> tuple[str, int]:
    """Id and size (bytes) of an image on a node. NodeError where it is not there."""
    done = await node.must(inspect(name), _STEP)
    identity, _, size = done.stdout.strip().partition(" ")
    return identity, int(size) if size.isdecimal() else 0


async def bring_image(
    fleet: Fleet, found: Images, facts: Mapping[str, Facts], told: Callable[[str], None] = lambda _: None
) -> str:
    """Bring an image to the nodes without it; its id, the same everywhere afterwards.

    Where no node has it, the first one pulls it. It is read there once, and goes on through this machine to
    all others at the same time, so that every node gets the very same.

    Raises GlmsparkError naming node, command and its last words.
    """
    source = found.source
    missing = list(found.missing)
    if source is None:
        source = missing.pop(0)
        told(f"pulling {found.name} on {source}")
        await fleet.nodes[source].must(
            pull(found.name),
            "pull the image",
            timeout=_PULL,
            next="build it (`glmspark image build`; in a lab `glmspark lab image`), or correct runtime.image",
        )
    if not missing and found.id is not None:
        return found.id
    identity, size = await image_at(fleet.nodes[source], found.name)
    for name in missing:  # before anything goes anywhere
        engine = facts[name].get(ENGINE)
        check_room(name, facts[name], engine.root if engine is not None else "", size, f"image {found.name}")
    if missing:
        await _hand_on(fleet.nodes[source], [fleet.nodes[name] for name in missing], found.name, size, told)
    for name in missing:
        there, _ = await image_at(fleet.nodes[name], found.name)
        if there != identity:
            raise NodeError(
                f"{found.name} arrived as {there[7:19]}, it was {identity[7:19]} on {source}",
                host=name,
                step=_STEP,
                next="both Docker Engines must keep images the same way: compare `docker info` on both",
            )
    return identity


async def _hand_on(
    source: Node, targets: Sequence[Node], name: str, size: int, told: Callable[[str], None]
) -> None:
    assert isinstance(source, SshNode)  # noqa: S101 - nodes of a cluster file are behind SSH
    reached = [target for target in targets if isinstance(target, SshNode)]
    assert len(reached) == len(targets)  # noqa: S101
    what = f"copying {name} from {source.host} to {', '.join(target.host for target in targets)}"
    last = -1.0

    def tell(count: int) -> None:
        nonlocal last
        now = asyncio.get_running_loop().time()
        if now - last >= 1.0:
            last = now
            told(f"{what}: {format_size(count)} of {format_size(size)}")

    told(what)
    await pour(source, save(name), reached, load(), step=_STEP, told=tell)
