"""What a collective costs, by the kind of link and the number of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import Literal

from glmspark.plan.speed.constants import Constants

__all__ = ["Link", "all_gather", "all_reduce", "hop"]

Kind = Literal["none", "tcp", "roce", "one-shot"]

_TCP_SHARE = 0.94
"""Of an Ethernet link's rate that a TCP stream carries as payload."""
_TCP_MOST = 2.5e9
"""Bytes a second of NCCL's sockets at most, however fast the port: they copy through the host's cores."""
_ROCE = 11e9
"""Bytes a second of a rank in an all-reduce by RoCE, as profiled while prefilling (ajclark)."""
_SMALL_ROCE, _SMALL_ONE_SHOT = 0.29e-9, 0.23e-9
"""Seconds a byte of small messages: 37 KB take 50 us and 150 KB 83 by NCCL; one-shot 23 us at 48 KB."""
_SMALL = 512 * 1024


@dataclass(frozen=True)
class Link:
    """What ranks reach one another by. none: there is one rank. tcp: NCCL's sockets. roce: NCCL over RDMA.
    one-shot: kernels that write into the others' memory, as b12x's RoCEnante.

    gbit: of the port. ring: cables without a switch: NCCL then goes around instead of by a tree.
    """

    kind: Kind
    gbit: float = 200.0
    ring: bool = False

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        if self.kind == "tcp":
            return min(self.gbit * 1e9 / 8 * _TCP_SHARE, _TCP_MOST)
        return min(_ROCE, self.gbit * 1e9 / 8 * 0.9)

    def steps(self, ranks: int) -> int:
        """Messages one after the other until every rank has heard of every other."""
        return ranks - 1 if self.ring else ceil(log2(ranks))


def hop(link: Link, constants: Constants) -> float:
    """Seconds of one small message."""
    if link.kind == "tcp":
        return constants.tcp_hop
    return constants.one_shot_hop if link.kind == "one-shot" else constants.roce_hop


def all_reduce(link: Link, ranks: int, size: float, constants: Constants) -> float:
    """Seconds of an all-reduce of `size` bytes: latency by steps, and the bytes."""
    if ranks == 1:
        return 0.0
    moved = size * 2 * (ranks - 1) / ranks
    if link.kind == "one-shot":  # every rank writes to all others at once
        return constants.one_shot_hop + _moved(link, size, moved)
    return 2 * link.steps(ranks) * hop(link, constants) + _moved(link, size, moved)


def all_gather(link: Link, ranks: int, size: float, constants: Constants) -> float:
    """Seconds until every rank has the `size` bytes of each: also a reduce-scatter or an all-to-all of
    them."""
    if ranks == 1:
        return 0.0
    steps = 1 if link.kind == "one-shot" else link.steps(ranks)
    return steps * hop(link, constants) + _moved(link, size, size * (ranks - 1))


def _moved(link: Link, size: float, moved: float) -> float:
    if link.kind == "tcp":
        return moved / link.bandwidth
    small = min(size, _SMALL) * (_SMALL_ONE_SHOT if link.kind == "one-shot" else _SMALL_ROCE)
    # A message that is just not small takes no less than one that just is.
    return small if size <= _SMALL else max(moved / link.bandwidth, small)
