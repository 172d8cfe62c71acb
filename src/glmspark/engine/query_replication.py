"""Does it pay to replicate MLA's query projection in a DCP group? Arithmetic, no vLLM.

With DCP a decode step needs every head's query on every rank. Either each rank computes its own heads and all
gather them (one all-gather a layer), or each computes all of them from a replicated projection, which it then
has to read. GLM-5.2 at TP4 and DCP4, int8 attention weights, on GB10 (273 GB/s) and RoCE: reading takes 78 *
(25.2 MB + 9.4 MB) / 273 GB/s = 10 ms a step, 78 gathers of 55 KB at 30 us take 2.5 ms. On 1 Gbit/s Ethernet
the gathers take 45 ms.
"""

from __future__ import annotations

from dataclasses import dataclass

MEMORY_RATE = 273e9
"""Bytes a second, GB10."""


@dataclass(frozen=True)
class Link:
    """What a collective costs: seconds each, besides bytes a second."""

    latency: float
    rate: float


RDMA = Link(30e-6, 25e9)
"""RoCE between ConnectX-7s of 200 Gbit/s; the latency is that of a small NCCL collective."""


@dataclass(frozen=True)
class Query:
    """MLA's query side: number of layers and heads, ranks and sizes, and bytes of a weight of q_b_proj."""

    layers: int
    heads: int
    q_lora_rank: int
    kv_lora_rank: int
    nope: int
    rope: int
    weight_bytes: float


def replicated_bytes(query: Query, dcp: int) -> float:
    """What a rank reads more a step: the other ranks' part of q_b_proj, and of W_UK, kept in bf16."""
    projection = query.q_lora_rank * query.heads * (query.nope + query.rope) * query.weight_bytes
    absorbed = query.heads * query.nope * query.kv_lora_rank * 2
    return query.layers * (projection + absorbed) * (1 - 1 / dcp)


def replication_seconds(query: Query, dcp: int) -> float:
    """Seconds a decode step takes longer with the projection replicated."""
    return replicated_bytes(query, dcp) / MEMORY_RATE


def gather_seconds(query: Query, dcp: int, link: Link, tokens: int = 1) -> float:
    """Seconds a decode step of `tokens` tokens takes longer with the queries gathered (ring, bf16)."""
    sent = (dcp - 1) * query.heads / dcp * (query.kv_lora_rank + query.rope) * 2 * tokens
    return query.layers * (link.latency + sent / link.rate)


def replication_pays(query: Query, dcp: int, link: Link, tokens: int = 1) -> bool:
    """Whether replicating is the faster of the two."""
    return replication_seconds(query, dcp) < gather_seconds(query, dcp, link, tokens)
