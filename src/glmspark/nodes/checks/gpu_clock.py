"""Whether every GPU reaches its clock under load; a node stuck low slows the whole deployment."""

from __future__ import annotations

from collections.abc import Iterator

from glmspark.nodes.checks import Judge, Look, Verdict
from glmspark.nodes.facts.gpu_load import gpu_load

FLOOR = 0.5
"""Share of the maximal clock under load below which a GPU is stuck (seen: 721 of about 2,400 MHz)."""
APART = 0.85
"""Share of the best node's speed below which a node is named."""


def under_load(look: Look) -> Iterator[Verdict]:
    """Clock and speed of each GPU after some seconds of work, against its maximum and the other nodes."""
    if not look.expected.place.known:
        return
    fact = gpu_load(look.expected.place)
    loads = {node: facts.get(fact) for node, facts in look.facts.items()}
    best = max((load.teraflops for load in loads.values() if load is not None), default=0.0)
    for node, load in loads.items():
        judge = Judge("GPU under load", node)
        if load is None:
            problem = look.facts[node].problem(fact)
            if problem != "not asked for":
                yield judge.unknown(f"{problem}")
            continue
        power = f", {load.power:.0f} W" if load.power is not None else ""
        seen = f"{load.clock:.0f} MHz{power}, {load.teraflops:.0f} Tflop/s"
        remedy = "pull the power plug for a minute and start it again; a reboot alone does not clear it"
        if load.clock_max and load.clock < FLOOR * load.clock_max:
            yield judge.slow(f"{seen}: stuck far below {load.clock_max:.0f} MHz", remedy)
        elif load.teraflops < APART * best:
            yield judge.slow(f"{seen}, while the best node does {best:.0f} Tflop/s", remedy)
        else:
            yield judge.ok(seen)
