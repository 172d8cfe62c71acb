"""The checkpoints that people run on Sparks, by their names on the hub, and the drafters made for them.

Sizes and formats are those that the model cards and the recipes' sources state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glmspark.models.published.configs import FLASH, GLM_5_2, GLM_5_2_REAP
from glmspark.models.published.formats import Formats

__all__ = ["CHECKPOINTS", "DRAFTERS", "Drafter", "Published", "find", "find_drafter"]


@dataclass(frozen=True)
class Published:
    """config: of its config.json. mtp: whether the MTP layer's weights are there."""

    config: Mapping[str, Any]
    formats: Formats
    mtp: bool = True
    indexer: bool = True


@dataclass(frozen=True)
class Drafter:
    """A drafter's own checkpoint. nbytes: on disk. layers: of it. block: tokens that it proposes at most."""

    nbytes: int
    layers: int
    block: int
    kv_heads: int = 8
    head_dim: int = 128
    window: int | None = 2048


_MIX = Formats("int4 g128", "int8 g128", "int8 channel", "int8 channel", float_layers=frozenset({0}))
_NVFP4 = Formats("nvfp4 g16")
_NVFP4_MTP = Formats("nvfp4 g16", mtp_routed="nvfp4 g16")
_NVFP4_ALL = Formats("nvfp4 g16", "nvfp4 g16", "nvfp4 g16", "bf16")
_FP8 = Formats("fp8 128x128", "fp8 128x128", "fp8 128x128", "fp8 128x128")
_FLASH_FP8 = Formats("fp8 128x128", "fp8 128x128", "fp8 128x128", "fp8 128x128", kda="bf16")
_BF16 = Formats("bf16")


def _exl3(bits: str, linears: str = "bf16") -> Formats:
    return Formats(f"exl3 {bits}", linears, f"exl3 {bits}", linears)


CHECKPOINTS: Mapping[str, Published] = {
    "zai-org/GLM-5.2": Published(GLM_5_2, _BF16),
    "zai-org/GLM-5.2-FP8": Published(GLM_5_2, _FP8),
    "QuantTrio/GLM-5.2-Int4-Int8Mix": Published(GLM_5_2, _MIX),
    "nvidia/GLM-5.2-NVFP4": Published(GLM_5_2, _NVFP4),
    "lukealonso/GLM-5.2-NVFP4": Published(GLM_5_2, _NVFP4),
    "Mapika/GLM-5.2-NVFP4": Published(GLM_5_2, _NVFP4),
    "0xSero/GLM-5.2-NVFP4-REAP-469B": Published(GLM_5_2_REAP, _NVFP4, mtp=False),
    "madeby561/GLM-5.2-NVFP4-REAP-504B": Published({**GLM_5_2, "n_routed_experts": 168}, _NVFP4, mtp=False),
    "madeby561/GLM-5.2-MXFP8-NVFP4-NF3-Hybrid": Published(
        GLM_5_2, Formats("nvfp4 and nf3", "mxfp8 g32", "nvfp4 and nf3", "mxfp8 g32")
    ),
    "CosmicRaisins/GLM-5.2-AWQ-INT4-15pct": Published(
        {**GLM_5_2, "n_routed_experts": 218}, Formats("awq int4 g128", "bf16")
    ),
    "brandonmusic/GLM-5.2-EXL3-TR3v4-3.5bpw-MTP78": Published(GLM_5_2, _exl3("3.5", "exl3 6")),
    "zai-org/GLM-5.3": Published(GLM_5_2, _FP8),
    "zai-org/GLM-5.3-BF16": Published(GLM_5_2, _BF16),
    "Tech2wild/GLM-5.3-Int4-Int8Mix": Published(GLM_5_2, _MIX),
    "2wild4tv/GLM-5.3-Int4-Int8Mix": Published(GLM_5_2, _MIX),
    "dealignai/GLM-5.3-UNCENSORED-NVFP4": Published(GLM_5_2, _NVFP4),
    "dealignai/GLM-5.3-UNCENSORED-FP8": Published(GLM_5_2, _FP8),
    "drowzeys/keys-GLM-5.3-EXL3-2.75BPW": Published(GLM_5_2, _exl3("2.75", "exl3 4")),
    "Mia-AiLab/GLM-5.3-EXL3-2.75bpw-TensorFold": Published(GLM_5_2, _exl3("2.75")),
    "zai-org/GLM-5.3-Flash": Published(FLASH, _FLASH_FP8),
    "RedHatAI/GLM-5.3-Flash-NVFP4": Published(FLASH, _NVFP4_MTP),
    "LibertAIDAI/GLM-5.3-Flash-NVFP4": Published(FLASH, _NVFP4_MTP),
    "nvidia/GLM-5.3-Flash-NVFP4": Published(FLASH, _NVFP4),
    "local-inference-lab/GLM-5.3-Flash-NVFP4": Published(FLASH, _NVFP4_MTP),
    "local-inference-lab/GLM-5.3-Flash-NVFP4-Spark": Published(FLASH, _NVFP4_MTP),
    "Mia-AiLab/GLM-5.3-Flash-EXL3-4bpw-TensorFold": Published(FLASH, _exl3("4", "exl3 4")),
    "brandonmusic/GLM-5.3-Flash-tr3-4bpw": Published(FLASH, _exl3("4")),
    "turboderp/GLM-5.3-Flash-exl3": Published(FLASH, _exl3("2.05")),
}

NVFP4_ATTENTION = _NVFP4_ALL
"""With attention in NVFP4, too, as tonyd2wild's GLM-5.3-Flash variant of 2026-09 has it."""

DRAFTERS: Mapping[str, Drafter] = {
    "RedHatAI/GLM-5.2-speculator.dspark": Drafter(7_100_000_000, 5, 7, window=1024),
    "b1rd/GLM-5.2-speculator.dspark-quanttrio-int4-ft": Drafter(7_100_000_000, 5, 7, window=1024),
    "sapidlabs/Sparkulator-GLM-5.2": Drafter(4_600_000_000, 5, 7, window=1024),
    "incoai/GLM-5.3-DFlash2": Drafter(4_600_000_000, 6, 7),
    "RedHatAI/GLM-5.3-speculator.dspark": Drafter(2_500_000_000, 5, 7, window=1024),
    "incoai/GLM-5.3-Flash-DFlash2": Drafter(2_200_000_000, 6, 7),
    "canada-quant/GLM-5.3-Flash-DFlash2-E": Drafter(2_600_000_000, 8, 7),
}


def find(name: str) -> Published | None:
    """What is known of a checkpoint by its name on the hub (org/name, in any case), None for another."""
    wanted = name.casefold()
    return next((one for known, one in CHECKPOINTS.items() if known.casefold() == wanted), None)


def find_drafter(name: str) -> Drafter | None:
    """Likewise of a drafter."""
    wanted = name.casefold()
    return next((one for known, one in DRAFTERS.items() if known.casefold() == wanted), None)
