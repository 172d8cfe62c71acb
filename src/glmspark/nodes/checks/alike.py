"""What should be the same on all nodes: kernel, driver, CUDA, Docker, image, NCCL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from glmspark.nodes.checks import Judge, Look, Verdict
from glmspark.nodes.facts.docker import ENGINE, IMAGES, Image
from glmspark.nodes.facts.host import KERNEL
from glmspark.nodes.facts.nccl import Nccl, nccl
from glmspark.nodes.facts.nvidia import CUDA, GPUS, TOOLKIT

# vllm-project/vllm issue 52504: replay of graphs across nodes hangs within a few requests; 2.30.4 mends it.
NCCL_BAD = {"2.28.9": "hangs when CUDA graphs are replayed across nodes"}


def versions(look: Look) -> Iterator[Verdict]:
    """Kernel, driver, CUDA, Docker and toolkit are of one version each on all nodes that have them."""
    wanted: dict[str, dict[str, str]] = {
        name: {} for name in ("kernel", "GPU driver", "CUDA", "Docker", "container toolkit")
    }
    for node, facts in look.facts.items():
        kernel, gpus, engine = facts.get(KERNEL), facts.get(GPUS), facts.get(ENGINE)
        if kernel is not None:
            wanted["kernel"][node] = kernel.release
        if gpus:
            wanted["GPU driver"][node] = gpus[0].driver
        if (cuda := facts.get(CUDA)) is not None:
            wanted["CUDA"][node] = cuda
        if engine is not None and engine.version:
            wanted["Docker"][node] = engine.version
        if (toolkit := facts.get(TOOLKIT)) is not None:
            wanted["container toolkit"][node] = toolkit
    for what, found in wanted.items():
        judge = Judge(f"same {what}")
        if len(set(found.values())) > 1:
            yield judge.slow(
                _groups(found),
                "bring all nodes to one version: sudo apt-get update && sudo apt-get dist-upgrade",
            )
        elif len(look.facts) > 1 and found:
            yield judge.ok(f"{next(iter(found.values()))} on {len(found)} of {len(look.facts)} nodes")


def same_image(look: Look) -> Iterator[Verdict]:
    """The image to run is on every node, and it is the same one: compared by id, tags lie."""
    wanted = look.expected.image
    if wanted is None or look.expected.runtime != "docker":
        return
    judge = Judge("same image")
    found: dict[str, str] = {}
    missing = []
    for node, facts in look.facts.items():
        images = facts.get(IMAGES)
        if images is None:
            yield Judge("same image", node).unread(facts, IMAGES)
            continue
        identity = identity_of(images, wanted)
        if identity is None:
            missing.append(node)
        else:
            found[node] = identity
    if missing:
        yield judge.blocked(
            f"{wanted} is not on {', '.join(missing)}",
            f"pull it there (docker pull {wanted}), or let `glmspark up` copy it from a node that has it",
        )
    if len(set(found.values())) > 1:
        yield judge.blocked(
            f"{wanted} is not the same image everywhere: {_groups({n: i[7:19] for n, i in found.items()})}",
            f"remove the wrong ones (docker image rm {wanted}) and pull again, or name the image by digest",
        )
    elif found and not missing:
        yield judge.ok(f"{wanted} is {next(iter(found.values()))[7:19]} everywhere")


def identity_of(images: tuple[Image, ...], wanted: str) -> str | None:
    """The id of an image among a node's, by name (`:latest` where no tag is given) or id; None without it."""
    named = wanted if ":" in wanted.rpartition("/")[2] or "@" in wanted else f"{wanted}:latest"
    for image in images:
        if image.name == named or image.id == wanted:
            return image.id
    return None


def same_nccl(look: Look) -> Iterator[Verdict]:
    """Ranks load one and the same NCCL, and not one known to hang."""
    if not look.expected.place.known:
        return
    fact = nccl(look.expected.place)
    found: dict[str, Nccl] = {}
    for node, facts in look.facts.items():
        value = facts.get(fact)
        if value is not None:
            found[node] = value
        elif facts.problem(fact) != "not asked for":
            yield Judge("same NCCL", node).unread(facts, fact)
    if not found:
        return
    judge = Judge("same NCCL")
    builds = {node: f"{one.version} build {one.build[:12] or 'without id'}" for node, one in found.items()}
    if len(set(builds.values())) > 1:
        yield judge.blocked(_groups(builds), "use one image on all nodes, and load no other NCCL into it")
        return
    version = next(iter(found.values())).version
    if version in NCCL_BAD:
        yield judge.blocked(f"{version}: {NCCL_BAD[version]}", "use an image with NCCL 2.30.4 or newer")
    else:
        yield judge.ok(f"{next(iter(builds.values()))} everywhere")


def _groups(found: Mapping[str, str]) -> str:
    """ "a on x, y; b on z"."""
    by_value: dict[str, list[str]] = {}
    for node, value in found.items():
        by_value.setdefault(value, []).append(node)
    return "; ".join(f"{value} on {', '.join(nodes)}" for value, nodes in sorted(by_value.items()))
