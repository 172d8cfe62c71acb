"""Several requests at once: each must get its own right answer, as if it were alone."""

from __future__ import annotations

import asyncio
import re

from glmspark.config.canaries import ConcurrentCanary, Exchange
from glmspark.launch.canaries import Finding, Probe, Target, Wave, shown


async def run(target: Target, canary: ConcurrentCanary) -> Finding:
    """Send all cases together and check every answer."""

    async def one(case: Exchange) -> str | None:
        answer = await target.ask(case.prompt, max_tokens=canary.max_tokens, thinking=canary.thinking)
        if re.search(case.expect, answer.text):
            return None
        return f"{shown(case.prompt, 60)} got {shown(answer.text, 60)}, expected {case.expect}"

    cases = [case for case in canary.cases for _ in range(canary.times)]
    faults = [fault for fault in await asyncio.gather(*map(one, cases)) if fault is not None]
    if faults:
        return Finding(False, f"{len(faults)} of {len(cases)} wrong: {faults[0]}")
    return Finding(True, f"{len(cases)} at once, all right")


PROBE = Probe(
    "concurrent",
    Wave.TOGETHER,
    run,
)
