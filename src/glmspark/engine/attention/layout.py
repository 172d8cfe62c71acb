"""How a token's key and value lie in an MLA cache: the latent of 512, then up to 64 rotary values.

Sources: vLLM 0.33.0, v1/attention/backends/mla/flashmla_sparse.py (the note on fp8_ds_mla), and FlashMLA's
flash_mla_interface.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch

LATENT = 512
"""Values of a token that serve as key and as value."""
GROUP = 128
"""Latent values that share a scale in fp8_ds_mla."""
GROUPS = LATENT // GROUP
PACKED_ROPE = 64
PACKED_BYTES = LATENT + 4 * GROUPS + 2 * PACKED_ROPE
"""Bytes of a token in fp8_ds_mla: 512 of fp8 e4m3, 4 float32 scales, 64 bfloat16 rotary values."""
E4M3_MOST = 448.0


class Format(IntEnum):
    """What a cache holds. The numbers are the kernels' own."""

    PLAIN = 0
    """bfloat16 or float16 throughout."""
    FP8 = 1
    """fp8 e4m3 throughout, one scale for the whole cache."""
    PACKED = 2
    """fp8_ds_mla, PACKED_BYTES a token."""


@dataclass(frozen=True)
class Cache:
    """Views of one cache, for the kernels: [pages, tokens a page, width] each, of different element types.

    latent: 512 values first. rope: the rotary values from `rope_at` on. scales: float32, from `scales_at` on;
    for FP8 a single one.
    """

    format: Format
    page: int
    rope_width: int
    latent: torch.Tensor
    rope: torch.Tensor
    rope_at: int
    scales: torch.Tensor
    scales_at: int


def cache_of(cache: torch.Tensor, kind: Format, rope_width: int, scale: torch.Tensor | None = None) -> Cache:
    """The views of a cache tensor [pages, tokens a page, width]; pages may lie apart, tokens may not.

    rope_width: 64, or 0 for layouts without rotary values (a packed cache then keeps room for them unused).
    scale: FP8's. Raises ValueError for a tensor that is none of these.
    """
    if cache.dim() != 3 or cache.stride(2) != 1:
        raise ValueError(f"an MLA cache is [pages, tokens, width], not {tuple(cache.shape)}")
    width = PACKED_BYTES if kind is Format.PACKED else LATENT + rope_width
    if cache.shape[2] != width:
        raise ValueError(f"a token takes {width} elements in this cache, not {cache.shape[2]}")
    page = cache.shape[1]
    if kind is Format.PACKED:
        raw = cache.view(torch.uint8)
        scales_at, rope_at = LATENT // 4, (LATENT + 4 * GROUPS) // 2
        return Cache(
            kind, page, rope_width, raw.view(torch.float8_e4m3fn), raw.view(torch.bfloat16), rope_at,
            raw.view(torch.float32), scales_at,
        )  # fmt: skip
    if kind is Format.FP8:
        if scale is None or scale.numel() != 1:
            raise ValueError("an fp8 cache has one scale")
        values = cache.view(torch.float8_e4m3fn)
        return Cache(kind, page, rope_width, values, values, LATENT, scale, 0)
    return Cache(kind, page, rope_width, cache, cache, LATENT, cache, 0)


def pack(values: torch.Tensor) -> torch.Tensor:
    """[..., 576 or 512] as fp8_ds_mla, uint8 [..., 656]: each group's scale is its largest value / 448."""
    *shape, width = values.shape
    packed = torch.zeros(*shape, PACKED_BYTES, dtype=torch.uint8, device=values.device)
    groups = values[..., :LATENT].float().reshape(*shape, GROUPS, GROUP)
    scales = groups.abs().amax(-1).clamp_min(1e-12) / E4M3_MOST
    fp8 = (groups / scales[..., None]).to(torch.float8_e4m3fn).reshape(*shape, LATENT)
    packed[..., :LATENT] = fp8.view(torch.uint8)
    packed[..., LATENT : LATENT + 4 * GROUPS] = scales.contiguous().view(torch.uint8)
    if width > LATENT:
        rope = values[..., LATENT:].to(torch.bfloat16).contiguous()
        packed[..., LATENT + 4 * GROUPS :] = rope.view(torch.uint8)
    return packed


def unpack(packed: torch.Tensor, rope_width: int = PACKED_ROPE) -> torch.Tensor:
    """fp8_ds_mla as float64 [..., 512 + rope_width]."""
    *shape, _ = packed.shape
    packed = packed.contiguous()
    fp8 = packed[..., :LATENT].contiguous().view(torch.float8_e4m3fn).double()
    scales = packed[..., LATENT : LATENT + 4 * GROUPS].contiguous().view(torch.float32).double()
    latent = (fp8.reshape(*shape, GROUPS, GROUP) * scales[..., None]).reshape(*shape, LATENT)
    rope = packed[..., LATENT + 4 * GROUPS :].contiguous().view(torch.bfloat16).double()
    return torch.cat([latent, rope[..., :rope_width]], -1)
