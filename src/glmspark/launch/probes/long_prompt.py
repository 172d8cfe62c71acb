"""A needle in a long prompt: attention reaches back, and the KV cache holds what was put in."""

from __future__ import annotations

import re

from glmspark.config.canaries import LongPromptCanary
from glmspark.launch.canaries import Finding, Probe, Target, Wave, shown


def build(canary: LongPromptCanary, copies: int) -> str:
    """The prompt with so many copies of the filler, the needle among them."""
    at = round(copies * canary.depth)
    return (
        canary.before + canary.filler * at + canary.needle + canary.filler * (copies - at) + canary.question
    )


async def run(target: Target, canary: LongPromptCanary) -> Finding:
    """Repeat the filler up to the wanted length, then ask for the needle."""
    fixed = await target.count(build(canary, 0))
    sample = 16  # several copies, because tokens may span the seam between two
    each = max(1.0, (await target.count(canary.filler * sample)) / sample)
    copies = max(0, int((canary.tokens - fixed) / each))
    prompt = build(canary, copies)
    answer = await target.ask(prompt, max_tokens=canary.max_tokens, thinking=canary.thinking)
    if re.search(canary.expect, answer.text):
        return Finding(True, f"{answer.prompt_tokens} tokens, found {shown(answer.text, 60)}")
    return Finding(
        False, f"{answer.prompt_tokens} tokens, {shown(answer.text)} does not match {canary.expect}"
    )


PROBE = Probe(
    "long_prompt",
    Wave.TOGETHER,
    run,
)
