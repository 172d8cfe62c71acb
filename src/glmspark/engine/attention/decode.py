"""MLA decoding: attention of few query rows over a long cache, with the LSE of every row and head."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache as remember

import torch

from glmspark.engine.attention.kernels import attend, merge
from glmspark.engine.attention.layout import LATENT, Cache
from glmspark.engine.attention.shapes import Shape, ceiling, shape_for, splits_for

LOG2_E = 1.4426950408889634
MERGE_BLOCK, MERGE_WIDTH = 16, 128

Result = tuple[torch.Tensor, torch.Tensor]


@remember
def device_limits(device: torch.device) -> tuple[int, int]:
    """(multiprocessors, bytes of shared memory a block may have); for Triton's interpreter a GB10's."""
    if device.type != "cuda":
        return 4, 101_376
    found = torch.cuda.get_device_properties(device)
    return found.multi_processor_count, found.shared_memory_per_block_optin


@dataclass(frozen=True)
class Requests:
    """Whose rows those of a query are, and how far they see.

    block_table: int32 [requests, pages] of what is here. starts: int32 [requests + 1], where a request's rows
    begin (vLLM's query_start_loc); rows beyond the last are no request's. lengths: int32 [requests], tokens
    on all ranks. most_rows, longest: bounds of rows a request and of tokens here, known without asking the
    device. world, rank, interleave: how tokens are shared out (`shares`). causal: the last row of a request
    sees all of it, the one before it one token less, and so on; otherwise every row sees all.
    """

    block_table: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    most_rows: int
    longest: int
    world: int = 1
    rank: int = 0
    interleave: int = 1
    causal: bool = True


@dataclass(frozen=True)
class _Work:
    places: torch.Tensor
    lengths: torch.Tensor
    groups: int
    blocks: int
    requests: Requests | None = None


def sparse(
    query: torch.Tensor,
    cache: Cache,
    slots: torch.Tensor,
    counts: torch.Tensor,
    scale: float,
    *,
    shape: Shape | None = None,
    splits: int | None = None,
) -> Result:
    """Every row over the tokens in its own list: [rows, heads, 512] as query, and float32 LSE [rows, heads].

    query: [rows, heads, 512 + rope_width]. slots: int32 [rows, k], a token's page times the page's size plus
    its place there; -1 is none, wherever it stands. counts: int32 [rows], how many of a row's slots to look
    at. A row with no token gets zeros and an LSE of minus infinity. Every row's memory is written.
    """
    rows, heads, _ = query.shape
    units, shared = device_limits(query.device)
    shape = shape or shape_for(cache.format, heads, shared)
    work = _Work(slots, counts, rows, ceiling(heads, shape.pairs))
    splits = splits or splits_for(shape, rows * work.blocks, slots.shape[1], units)
    return _run(query, cache, work, scale, shape, splits)


def dense(
    query: torch.Tensor,
    cache: Cache,
    requests: Requests,
    scale: float,
    *,
    shape: Shape | None = None,
    splits: int | None = None,
) -> Result:
    """Every row over those of its request's tokens that are here: out and LSE as `sparse`.

    query: [rows, heads, 512 + rope_width], a request's rows in order. The rows of a request share what is
    read of the cache. Rows of no request get zeros and minus infinity.
    """
    heads = query.shape[1]
    units, shared = device_limits(query.device)
    pairs = requests.most_rows * heads
    shape = shape or shape_for(cache.format, pairs, shared)
    groups, blocks = requests.block_table.shape[0], ceiling(pairs, shape.pairs)
    work = _Work(requests.block_table, requests.lengths, groups, blocks, requests)
    splits = splits or splits_for(shape, groups * blocks, requests.longest, units)
    return _run(query, cache, work, scale, shape, splits)


def merge_parts(parts: torch.Tensor, lses: torch.Tensor, dtype: torch.dtype) -> Result:
    """Parts [parts, rows, heads, 512] with their LSE [parts, rows, heads], as of several ranks, as one."""
    _, rows, heads, _ = parts.shape
    out = torch.empty(rows, heads, LATENT, dtype=dtype, device=parts.device)
    lse = torch.empty(rows, heads, dtype=torch.float32, device=parts.device)
    _merge(parts.permute(1, 2, 0, 3), lses.permute(1, 2, 0), None, out, lse)
    return out, lse


def _run(query: torch.Tensor, cache: Cache, work: _Work, scale: float, shape: Shape, splits: int) -> Result:
    rows, heads, _ = query.shape
    out = torch.empty(rows, heads, LATENT, dtype=query.dtype, device=query.device)
    lse = torch.empty(rows, heads, dtype=torch.float32, device=query.device)
    if not rows or not work.groups:
        return out.zero_(), lse.fill_(float("-inf"))
    asked = work.requests
    # Dense rows of no request are written by the merge alone.
    at_once = splits == 1 and asked is None
    if at_once:
        parts, part_lses = out.unsqueeze(2), lse.unsqueeze(2)
    else:
        parts = torch.empty(rows, heads, splits, LATENT, dtype=torch.float32, device=query.device)
        part_lses = torch.empty(rows, heads, splits, dtype=torch.float32, device=query.device)
    attend[(work.blocks, splits, work.groups)](
        query,
        cache.latent,
        cache.rope,
        cache.scales,
        work.places,
        work.lengths,
        work.lengths if asked is None else asked.starts,
        parts,
        part_lses,
        scale * LOG2_E,
        heads,
        asked.rank if asked else 0,
        asked.world if asked else 1,
        asked.interleave if asked else 1,
        query.stride(0),
        query.stride(1),
        *cache.latent.stride()[:2],
        *cache.rope.stride()[:2],
        *(cache.scales.stride()[:2] if cache.scales.dim() == 3 else (0, 0)),
        work.places.stride(0),
        *parts.stride()[:3],
        *part_lses.stride(),
        ROPE=cache.rope_width,
        ROPE_AT=cache.rope_at,
        SCALES_AT=cache.scales_at,
        FORMAT=int(cache.format),
        SPARSE=asked is None,
        PAGE=cache.page,
        CAUSAL=asked is not None and asked.causal,
        BLOCK_M=shape.pairs,
        BLOCK_N=shape.keys,
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
    if not at_once:
        _merge(parts, part_lses, asked, out, lse)
    return out, lse


def _merge(
    parts: torch.Tensor,
    part_lses: torch.Tensor,
    asked: Requests | None,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """Parts [rows, heads, parts, 512] into out and lse; rows of no request have none."""
    rows, heads, _ = out.shape
    merge[(rows, heads, LATENT // MERGE_WIDTH)](
        parts,
        part_lses,
        lse if asked is None else asked.starts,
        out,
        lse,
        parts.shape[2],
        0 if asked is None else asked.block_table.shape[0],
        *parts.stride()[:3],
        *part_lses.stride(),
        *out.stride()[:2],
        *lse.stride(),
        BY_REQUEST=asked is not None,
        BLOCK=MERGE_BLOCK,
        WIDTH=MERGE_WIDTH,
        num_warps=4,
    )
