"""Whether a recipe finds what it needs: nodes, GPUs, the link. Memory and disk have checks of their own."""

from __future__ import annotations

from collections.abc import Iterator

from glmspark.nodes.checks import Judge, Look, Verdict
from glmspark.nodes.facts.network import LINKS
from glmspark.nodes.facts.nvidia import GPUS


def recipe(look: Look) -> Iterator[Verdict]:
    """The nodes are enough, and of the kind that the recipe is for."""
    expected = look.expected
    if expected.recipe is None:
        return
    judge = Judge("recipe")
    count = len(look.facts) + len(look.lost)
    if expected.nodes is not None and count < expected.nodes:
        yield judge.blocked(
            f"{expected.recipe} needs {expected.nodes} nodes, there {'is' if count == 1 else 'are'} {count}",
            "add nodes to cluster.yaml, or choose another recipe: `glmspark recipe list`",
        )
    else:
        yield judge.ok(f"{expected.recipe}: {count} of {expected.nodes or 1} nodes are there")
    if expected.platform == "cuda":
        for node, facts in look.facts.items():
            if not facts.get(GPUS):
                yield Judge("recipe", node).blocked(
                    f"{expected.recipe} runs on GPUs, and there is none that answers",
                    "see the check GPU; `--toy` runs the recipe's layout on CPUs",
                )
    yield from _link(look)


def _link(look: Look) -> Iterator[Verdict]:
    expected, cluster = look.expected, look.cluster
    if cluster is None or len(cluster.nodes) < 2:
        return
    for node in cluster.nodes:
        facts = look.facts.get(node.name)
        if facts is None:
            continue
        judge = Judge("recipe's link", node.name)
        if expected.link == "rdma" and not any(link.hca for link in node.fabric):
            yield judge.blocked(
                f"{expected.recipe} wants RDMA, and cluster.yaml names no hca for {node.name}",
                "run `glmspark init` again, or choose a recipe for Ethernet",
            )
            continue
        hardware = {one.name: one.speed for one in facts.get(LINKS) or ()}
        speeds = [speed for link in node.fabric if (speed := hardware.get(link.interface))]
        if expected.link_gbit is None or not speeds:
            continue
        fastest = max(speeds) / 1000
        if fastest < expected.link_gbit:
            yield judge.slow(
                f"{fastest:g} Gbit/s, {expected.recipe} wants {expected.link_gbit:g}",
                "use the ConnectX-7 ports, and check what the switch negotiates",
            )
        else:
            yield judge.ok(f"{fastest:g} Gbit/s")
