"""The kinds of canaries, one file each."""

from __future__ import annotations

from glmspark.launch.canaries import Probe
from glmspark.launch.probes import (
    answer,
    concurrent,
    long_answer,
    long_prompt,
    ranks,
    reasoning,
    streaming,
    tool_call,
)

PROBES: dict[str, Probe] = {
    probe.kind: probe
    for probe in (
        answer.PROBE,
        concurrent.PROBE,
        long_prompt.PROBE,
        long_answer.PROBE,
        streaming.PROBE,
        reasoning.PROBE,
        tool_call.PROBE,
        ranks.PROBE,
    )
}
"""By the name recipes use."""
