"""One greedy answer with the right text: the least a model must do."""

from __future__ import annotations

import re

from glmspark.config.canaries import AnswerCanary
from glmspark.launch.canaries import Finding, Probe, Target, Wave, shown


async def run(target: Target, canary: AnswerCanary) -> Finding:
    """Ask once and look for the expected text."""
    answer = await target.ask(canary.prompt, max_tokens=canary.max_tokens, thinking=canary.thinking)
    if re.search(canary.expect, answer.text):
        return Finding(True, shown(answer.text))
    if not answer.text and answer.reasoning:
        return Finding(False, f"no content, only reasoning {shown(answer.reasoning)}")
    return Finding(False, f"{shown(answer.text)} does not match {canary.expect}")


PROBE = Probe(
    "answer",
    Wave.FIRST,
    run,
)
