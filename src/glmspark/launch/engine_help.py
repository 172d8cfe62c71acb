"""Asking an engine which flags it takes: a recorded text, this environment's, or an image's on a node."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from glmspark.config.cluster import Cluster
from glmspark.errors import GlmsparkError, UsageError
from glmspark.nodes.doctor import addresses
from glmspark.nodes.facts import Fact, engine_help
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.node import LocalNode, Node, failed
from glmspark.nodes.transport import NodeError
from glmspark.plan.engine_help import EngineHelp, parse_help

_SECONDS = 300.0
"""Importing vLLM takes 12 s on a busy core, and an image's first start reads gigabytes."""
_LARGEST = 8 * 2**20


def of_file(path: Path) -> EngineHelp:
    """The flags in a file with the text of `vllm serve --help=all`. UsageError where it is no such text."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST).decode("utf-8", "replace")
        return parse_help(text)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(
            f"{path}: {reason}",
            step="read the engine's help",
            next=f"make one with: vllm serve --help=all > {path}",
        ) from error


async def of_engine() -> EngineHelp:
    """The flags of the engine installed here. GlmsparkError where there is none."""
    if importlib.util.find_spec("vllm") is None:
        raise GlmsparkError(
            "no engine is installed here",
            step="look for vLLM",
            seen=f"{sys.executable} has no module vllm",
            next="give --image IMAGE, or --engine-help FILE with the text of `vllm serve --help=all`",
        )
    return await _ask(LocalNode(), engine_help.of_environment(sys.executable))


async def of_image(image: str, cluster: Cluster | None = None) -> EngineHelp:
    """The flags of an image: on this machine, or with a cluster on its first node, with the mounts and the
    Python that the cluster's file names. NodeError where it cannot be asked."""
    if cluster is None:
        return await _ask_image(LocalNode(), image, "python3", ())
    first = cluster.nodes[0].name
    async with Fleet({first: addresses(cluster)[first]}) as fleet:
        for error in fleet.lost.values():
            raise error
        runtime = cluster.runtime
        return await _ask_image(fleet.nodes[first], image, runtime.python or "python3", runtime.mounts)


async def _ask_image(node: Node, image: str, python: str, mounts: tuple[str, ...]) -> EngineHelp:
    try:
        return await _ask(node, engine_help.of_image(image, python=python, mounts=mounts))
    except NodeError as error:
        # An image of someone else's has vLLM and no glmspark; a broken one of ours should say what is wrong.
        if "No module named" not in (error.seen or "") or "glmspark" not in (error.seen or ""):
            raise
    return await _ask(node, engine_help.of_foreign_image(image, mounts=mounts))


async def _ask(node: Node, fact: Fact[EngineHelp]) -> EngineHelp:
    step = "ask the engine for its flags"
    done = await node.run(fact.command, timeout=_SECONDS)
    if done.code != 0:
        raise failed(node.host, step, done)
    try:
        return fact.parse(done.stdout)
    except ValueError as error:
        raise NodeError(str(error), host=node.host, step=step, seen=done.stdout[:500] or None) from error
