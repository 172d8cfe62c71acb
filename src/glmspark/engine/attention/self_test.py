"""Is the decode kernel right on this very device? Asked at every start: not all could be tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from glmspark.engine.attention import decode, reference, shares
from glmspark.engine.attention.layout import LATENT, Format, cache_of, pack

OUT_MOST, LSE_MOST = 1e-2, 1e-3
"""Allowed: of the norm of the right output, with bfloat16 or fp8 operands; and of the LSE."""


@dataclass(frozen=True)
class Wanted:
    """What will be decoded: format, heads (gathered), rotary width, rows a request, page size."""

    kind: Format
    heads: int
    rope: int
    rows: int
    page: int
    dtype: torch.dtype = torch.bfloat16
    world: int = 1
    rank: int = 0


def _random() -> dict[str, Any]:
    """Where and by what numbers are drawn: vLLM builds models with the GPU and bf16 as defaults."""
    return {"generator": torch.Generator(device="cpu").manual_seed(1), "device": "cpu"}


def differences(wanted: Wanted, device: torch.device, longest: int = 1000) -> tuple[float, float]:
    """The largest error of a row's output, and of an LSE, on random inputs; infinity for what is no number.

    A ragged batch: a request of many tokens and all rows, one of few, one of a single token, and a row of no
    request. Raises whatever compiling or launching raises.
    """
    random = _random()
    lengths = torch.tensor([longest, max(3, wanted.rows), 1], dtype=torch.int32, device="cpu")
    bounds = [0, wanted.rows, wanted.rows + 1, wanted.rows + 2]
    starts = torch.tensor(bounds, dtype=torch.int32, device="cpu")
    total, pages = int(starts[-1]) + 1, -(-longest // wanted.page)
    width = LATENT + wanted.rope
    values = torch.randn(3 * pages, wanted.page, width, dtype=torch.float32, **random)
    query = torch.randn(total, wanted.heads, width, dtype=torch.float32, **random) * 0.3
    query = query.to(device, wanted.dtype)
    table = torch.randperm(3 * pages, **random).view(3, pages).to(device, torch.int32)
    scale = torch.tensor(0.02, dtype=torch.float32, device=device)
    if wanted.kind is Format.FP8:
        stored = (values / 0.02).clamp(-448, 448).to(torch.float8_e4m3fn)
    else:
        stored = values.to(torch.bfloat16)
    cache = cache_of(stored.to(device), wanted.kind, wanted.rope, scale)
    starts, lengths = starts.to(device), lengths.to(device)
    requests = decode.Requests(table, starts, lengths, wanted.rows, longest, wanted.world, wanted.rank)
    found = decode.dense(query, cache, requests, 0.06)
    here = shares.row_lengths(starts, lengths, total, wanted.world, wanted.rank)
    return _compared(found, reference.dense(query, cache, table, starts, here, 0.06))


def sparse_differences(wanted: Wanted, device: torch.device, count: int = 300) -> tuple[float, float]:
    """The same for chosen keys: a row with as many as `count`, one with few, one with none."""
    random = _random()
    pages = 2 * count // wanted.page + 1
    width = LATENT + wanted.rope
    values = torch.randn(pages, wanted.page, width, dtype=torch.float32, **random)
    stored = pack(values) if wanted.kind is Format.PACKED else values.to(torch.bfloat16)
    cache = cache_of(stored.to(device), wanted.kind, wanted.rope)
    query = torch.randn(3, wanted.heads, width, dtype=torch.float32, **random) * 0.3
    query = query.to(device, wanted.dtype)
    slots = torch.randint(0, pages * wanted.page, (3, count), dtype=torch.int32, **random)
    counts = torch.tensor([count, 5, 0], dtype=torch.int32, device="cpu")
    slots[torch.arange(count, device="cpu") >= counts[:, None]] = -1
    slots = slots.to(device)
    found = decode.sparse(query, cache, slots, counts.to(device), 0.06)
    return _compared(found, reference.sparse(query, cache, slots, 0.06))


def _compared(found: decode.Result, right: decode.Result) -> tuple[float, float]:
    out, lse = (part.double() for part in found)
    norms = right[0].norm(dim=-1).clamp_min(1e-3)
    same = lse == right[1]  # where both are minus infinity
    out_off = ((out - right[0]).norm(dim=-1) / norms).max()
    lse_off = torch.where(same, torch.zeros_like(lse), (lse - right[1]).abs()).max()
    infinity = float("inf")
    return float(out_off.nan_to_num(infinity)), float(lse_off.nan_to_num(infinity))


def verdict(wanted: Wanted, device: torch.device, *, sparse: bool = False) -> str | None:
    """None where the kernel is right here, otherwise what was seen."""
    try:
        out, lse = (sparse_differences if sparse else differences)(wanted, device)
    except Exception as error:  # noqa: BLE001 - whatever compiler and driver may say
        return f"{type(error).__name__}: {error}"
    if out <= OUT_MOST and lse <= LSE_MOST:
        return None
    return f"output off by {out:.1e} ({OUT_MOST:.0e} allowed), LSE by {lse:.1e} ({LSE_MOST:.0e})"
