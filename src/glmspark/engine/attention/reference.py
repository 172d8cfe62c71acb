"""Attention in float64, plainly: what the kernels are measured against."""

from __future__ import annotations

import torch

from glmspark.engine.attention.layout import LATENT, Cache, Format, unpack


def tokens_of(cache: Cache) -> torch.Tensor:
    """Every token of a cache, float64 [pages * page, 512 + rotary values], in order of its slot."""
    if cache.format is Format.PACKED:
        found = unpack(cache.scales.view(torch.uint8), cache.rope_width)
    else:
        found = cache.latent.double()
        if cache.format is Format.FP8:
            found = found * cache.scales.double()
    return found.reshape(-1, found.shape[-1])


def attend(query: torch.Tensor, tokens: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """One row: query [heads, D] over tokens [N, D] -> ([heads, 512], natural LSE [heads]), float64.

    Over no token: zeros, and an LSE of minus infinity.
    """
    if len(tokens) == 0:
        empty = query.new_full((query.shape[0],), float("-inf"), dtype=torch.float64)
        return query.new_zeros((query.shape[0], LATENT), dtype=torch.float64), empty
    scores = query.double() @ tokens.T * scale
    return torch.softmax(scores, -1) @ tokens[:, :LATENT], torch.logsumexp(scores, -1)


def sparse(
    query: torch.Tensor, cache: Cache, slots: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every row over its own slots, those that are -1 left out. Shapes as `decode.sparse`."""
    every = tokens_of(cache)
    rows = [
        attend(row, every[chosen[chosen >= 0].long()], scale)
        for row, chosen in zip(query, slots, strict=True)
    ]
    return torch.stack([out for out, _ in rows]), torch.stack([lse for _, lse in rows])


def dense(
    query: torch.Tensor,
    cache: Cache,
    block_table: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every row over the first `lengths[row]` tokens of its request. Shapes as `decode.dense`."""
    every, found = tokens_of(cache), []
    bounds = starts.tolist()
    for row in range(query.shape[0]):
        request = next((n for n in range(len(bounds) - 1) if bounds[n] <= row < bounds[n + 1]), None)
        count = 0 if request is None else int(lengths[row])
        places = torch.arange(count, device=query.device)
        pages = block_table[request or 0, places // cache.page].long()
        found.append(attend(query[row], every[pages * cache.page + places % cache.page], scale))
    return torch.stack([out for out, _ in found]), torch.stack([lse for _, lse in found])


def merged(outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Parts [parts, rows, heads, 512] and [parts, rows, heads] as one, float64."""
    whole = torch.logsumexp(lses.double(), 0)
    weights = torch.exp(lses.double() - whole).nan_to_num(0.0)
    return (weights[..., None] * outs.double()).sum(0), whole
