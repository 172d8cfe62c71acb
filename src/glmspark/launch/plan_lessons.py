"""What started engines said of their memory, read from their logs here and on nodes, and kept for later
plans."""

from __future__ import annotations

import asyncio
from pathlib import Path

from glmspark.errors import GlmsparkError
from glmspark.launch.cluster_ops import find
from glmspark.launch.record import Deployment, homes
from glmspark.plan.learned import Lesson, lesson_of, load_lessons, save_lesson

__all__ = ["learn"]

_LINES = "Model loading took|Graph capturing finished|KV cache size"
_LOG_END = 8 * 2**20


def learn() -> list[Lesson]:
    """Read the logs of every deployment that this machine knows, keep what they teach, and return all that
    is kept.

    What cannot be read teaches nothing: a node that is away is no reason not to plan. Raises StateError where
    nothing can be kept.
    """
    for home in homes():
        try:
            deployment = home.read()
        except GlmsparkError:
            continue
        if deployment is None:
            continue
        logs = _logs_here(deployment) if deployment.cluster is None else _logs_there(home.name, deployment)
        lesson = lesson_of(str(deployment.recipe.get("name", "")), deployment.plan, logs)
        if lesson is not None:
            save_lesson(lesson)
    return load_lessons()


def _logs_here(deployment: Deployment) -> list[str]:
    texts = []
    for rank in deployment.ranks:
        try:
            with Path(rank.log).open("rb") as file:
                file.seek(0, 2)
                file.seek(max(file.tell() - _LOG_END, 0))
                texts.append(file.read().decode(errors="replace"))
        except OSError:
            continue
    return texts


def _logs_there(name: str, deployment: Deployment) -> list[str]:
    try:
        return asyncio.run(_ask(name, deployment))
    except GlmsparkError:
        return []


async def _ask(name: str, deployment: Deployment) -> list[str]:
    place = find(name, None)
    if place is None:
        return []
    logs = {rank.node: rank.log for rank in deployment.ranks}
    async with place.reached() as fleet:
        known = [(fleet.nodes[node], log) for node, log in logs.items() if node in fleet.nodes]
        said = await asyncio.gather(
            *(node.run(["grep", "-a", "-E", _LINES, "--", log]) for node, log in known),
            return_exceptions=True,
        )
    return [one.stdout for one in said if not isinstance(one, BaseException)]
