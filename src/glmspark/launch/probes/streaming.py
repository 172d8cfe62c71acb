"""The same request streamed and whole: the same text, so the stream's parser loses and doubles nothing."""

from __future__ import annotations

import asyncio
import re

from glmspark.config.canaries import StreamingCanary
from glmspark.launch.canaries import Finding, Probe, Target, Wave, shown


async def run(target: Target, canary: StreamingCanary) -> Finding:
    """Ask twice, once each way, and compare content and reasoning."""
    whole, streamed = await asyncio.gather(
        target.ask(canary.prompt, max_tokens=canary.max_tokens, thinking=canary.thinking),
        target.ask(canary.prompt, max_tokens=canary.max_tokens, thinking=canary.thinking, stream=True),
    )
    if (whole.text, whole.reasoning) != (streamed.text, streamed.reasoning):
        return Finding(False, f"whole {shown(whole.text, 80)}, streamed {shown(streamed.text, 80)}")
    if not re.search(canary.expect, whole.text):
        return Finding(False, f"{shown(whole.text)} does not match {canary.expect}")
    return Finding(True, f"both {shown(whole.text, 80)}")


PROBE = Probe(
    "streaming",
    Wave.TOGETHER,
    run,
)
