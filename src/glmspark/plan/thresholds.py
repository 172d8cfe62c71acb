"""What the guard on a node has to know of a plan, in bytes."""

from __future__ import annotations

from glmspark.plan.plan import Memory

__all__ = ["thresholds"]

_LOW_SHARE = 3 / 121
"""Of a Spark's 121 GiB 3 GiB free, which the plan leaves. Published floors are 4.5 to 6 GiB of MemAvailable
(knapcio), which counts page cache; nodes were seen to wedge with less, and one to live with 0.5 GiB
(0xdfi)."""
_LOW_LEAST = 256 * 2**20


def thresholds(memory: Memory, total: int) -> dict[str, int]:
    """Bytes for a node's guard.json. memory: of the rank there. total: of the node.

    load_need_bytes: the most the rank takes while it loads. engine_bytes: what a running rank takes beside
    weights and KV cache. free_low_bytes: below it nothing new should be admitted; free_critical_bytes:
    below it the deployment has to go, before sshd does.
    """
    low = max(int(total * _LOW_SHARE), min(_LOW_LEAST, total // 20))
    # Where the plan leaves less, below a third of it nothing could ever be admitted.
    low = max(min(low, total - total // 48 - memory.needed), low // 3)
    weights = memory.weights + memory.drafter
    return {
        "weights_bytes": weights,
        "load_need_bytes": memory.load or weights + memory.process,
        "kv_bytes": memory.kv_cache,
        "engine_bytes": memory.scratch + memory.process + memory.graphs + memory.network,
        "needed_bytes": memory.needed,
        "reserve_bytes": memory.reserve,
        "free_low_bytes": low,
        "free_critical_bytes": low // 2,
    }
