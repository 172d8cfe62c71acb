"""Reasoning in its own field: a client must never see it, or its tags, in the content."""

from __future__ import annotations

import re

from glmspark.config.canaries import ReasoningCanary
from glmspark.launch.canaries import Finding, Probe, Target, Wave, shown

_TAG = re.compile(r"</?think>")


async def run(target: Target, canary: ReasoningCanary) -> Finding:
    """Ask once with reasoning on and check both fields."""
    answer = await target.ask(canary.prompt, max_tokens=canary.max_tokens, thinking=canary.thinking)
    if _TAG.search(answer.text) or _TAG.search(answer.reasoning):
        return Finding(False, f"think tags left in: {shown(answer.reasoning, 80)} / {shown(answer.text, 80)}")
    if not re.search(canary.expect_reasoning, answer.reasoning):
        return Finding(False, f"reasoning {shown(answer.reasoning)} does not match {canary.expect_reasoning}")
    if not re.search(canary.expect, answer.text):
        return Finding(False, f"content {shown(answer.text)} does not match {canary.expect}")
    return Finding(True, f"reasoning {shown(answer.reasoning, 60)}, content {shown(answer.text, 40)}")


PROBE = Probe(
    "reasoning",
    Wave.TOGETHER,
    run,
)
