"""Every rank alive from the first question to the last answer.

An API server answers /health for a while after a worker of another rank has died; its processes tell at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from glmspark.config.canaries import RanksCanary
from glmspark.launch.canaries import Finding, Probe, Target, Wave


async def run(target: Target, canary: RanksCanary) -> Finding:  # noqa: ARG001 - every probe has this form
    """Count each rank's processes before and after the other probes."""
    wanted = [rank.rank for rank in target.deployment.ranks]
    before = target.census()
    if fault := _missing(wanted, before):
        return Finding(False, fault)
    await target.served.wait()
    after = target.census()
    if fault := _missing(wanted, after):
        return Finding(False, fault)
    gone = [f"rank {rank}: {title}" for rank in wanted for title in before[rank] if title not in after[rank]]
    if gone:
        return Finding(False, f"ended while the canaries ran: {', '.join(gone)}")
    workers = [title.removeprefix("VLLM::") for rank in wanted for title in after[rank] if "Worker" in title]
    return Finding(True, f"{len(wanted)} rank{'s' * (len(wanted) > 1)}: {', '.join(workers)}")


def _missing(wanted: list[int], census: Mapping[int, list[str]]) -> str | None:
    for rank in wanted:
        if rank not in census:
            return f"rank {rank} does not run"
        if not any("Worker" in title for title in census[rank]):
            return f"rank {rank} has no worker process"
    return None


PROBE = Probe(
    "ranks",
    Wave.THROUGHOUT,
    run,
)
