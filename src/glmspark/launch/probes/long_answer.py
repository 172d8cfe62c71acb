"""A long answer that is right to its end: errors of single steps would add up."""

from __future__ import annotations

import re

from glmspark.config.canaries import LongAnswerCanary
from glmspark.launch.canaries import Finding, Probe, Target, Wave, shown


async def run(target: Target, canary: LongAnswerCanary) -> Finding:
    """Ask once; the answer must be long enough and match."""
    answer = await target.ask(canary.prompt, max_tokens=canary.max_tokens, thinking=canary.thinking)
    if answer.tokens < canary.min_tokens:
        return Finding(
            False, f"{answer.tokens} tokens, expected at least {canary.min_tokens}: {shown(answer.text)}"
        )
    if re.search(canary.expect, answer.text):
        return Finding(True, f"{answer.tokens} tokens, right to the end")
    return Finding(False, f"{answer.tokens} tokens, {shown(answer.text)} does not match {canary.expect}")


PROBE = Probe(
    "long_answer",
    Wave.TOGETHER,
    run,
)
