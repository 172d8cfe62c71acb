"""The few physical constants of the speed model. `make calibrate` writes constants.json."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["BANDWIDTH", "PRIORS", "Constants", "Prior", "load_constants"]

BANDWIDTH = 273e9
"""Bytes a second of a GB10's memory (NVIDIA's data sheet). 239e9 were reached by Marlin's 8-bit kernel."""


@dataclass(frozen=True)
class Constants:
    """Seconds, and shares of the memory's bandwidth.

    packed, floats, exl3: of the bandwidth that kernels reach on 4- and 8-bit, bf16 and EXL3 weights;
    exl3_tuned: by TensorFold's. overlap:
    of an additional token's experts that were chosen by the others of its step already, beyond chance.
    hops: one small message. layer: launches, norms and waiting of a layer under CUDA graphs. eager: more
    without them. context_layer: packing, merging and waiting of context parallelism, a layer. step:
    scheduler, sampling and rejection. draft: launches of one drafting pass. stage: from one pipeline stage
    to the next, over sockets. compute: floating point operations a second of one GPU in prefill.
    prefill_layer: index and copy kernels of a layer and token in prefill. prefill_context: share of context
    parallelism's transfers in prefill that nothing hides.
    """

    packed: float
    floats: float
    exl3: float
    exl3_tuned: float
    overlap: float
    roce_hop: float
    one_shot_hop: float
    tcp_hop: float
    layer: float
    eager: float
    context_layer: float
    step: float
    draft: float
    stage: float
    compute: float
    prefill_layer: float
    prefill_context: float


@dataclass(frozen=True)
class Prior:
    """What a constant is by its source, and by what factor that may be wrong (one sigma)."""

    value: float
    sigma: float
    source: str


PRIORS: dict[str, Prior] = {
    "packed": Prior(
        0.80, 0.06, "experts at 75-80 % of 273 GB/s, Marlin 8 bits at 239 GB/s (glm52-spark-kit)"
    ),
    "floats": Prior(0.86, 0.05, "cuBLAS bf16 at 235 GB/s (glm52-spark-kit)"),
    "exl3": Prior(0.45, 0.30, "trellis decoding is bound by arithmetic; no figure is published"),
    "exl3_tuned": Prior(0.60, 0.20, "likewise, by kernels made for a GB10"),
    "overlap": Prior(0.20, 0.30, "4.12 ms for a verified token of Flash against 5.1 by chance (tonyd2wild)"),
    "roce_hop": Prior(10e-6, 0.20, "all-reduce of 37 KB among four in 50 us (NCCL)"),
    "one_shot_hop": Prior(12e-6, 0.20, "all-reduce of 48 KB in 23 us (RoCEnante)"),
    "tcp_hop": Prior(120e-6, 0.40, "NCCL sockets between GB10s; no figure is published"),
    "layer": Prior(120e-6, 0.40, "norms 4 %, idle 3-8 % of steps of 110-130 ms, 78 layers (glm52-spark-kit)"),
    "eager": Prior(480e-6, 0.20, "46.5 against 56.7 tok/s at 5.45 tokens a step, 45 layers (NNNtrance)"),
    "context_layer": Prior(60e-6, 0.50, "139 to 155 ms a cycle from DCP1 to DCP4, 78 layers (ajclark)"),
    "step": Prior(3e-3, 0.50, "sampling, rejection, scheduling; idle share of the profiles"),
    "draft": Prior(2e-3, 0.50, "launches of one drafting pass; no figure is published"),
    "stage": Prior(3e-3, 0.80, "Ray and sockets between stages; no figure is published"),
    "compute": Prior(31e12, 0.20, "experts at 31 TFLOPS a rank in prefill (ajclark)"),
    "prefill_layer": Prior(1.0e-6, 0.50, "copies and indexing 17 % at 490 tok/s, 78 layers (ajclark)"),
    "prefill_context": Prior(0.70, 0.40, "gathers 10 % and scatters 8 % of prefill at DCP2 (ajclark)"),
}


@cache
def load_constants() -> Constants:
    """The calibrated constants that come with glmspark."""
    return Constants(**load_calibration()["constants"])


@cache
def load_calibration() -> dict[str, Any]:
    """All of constants.json: constants, acceptance by kind of text, and how far predictions were off."""
    text = (files("glmspark.plan.speed") / "constants.json").read_text(encoding="utf-8")
    data = json.loads(text)
    assert set(data["constants"]) == {one.name for one in fields(Constants)}  # noqa: S101 - our own file
    return dict(data)
