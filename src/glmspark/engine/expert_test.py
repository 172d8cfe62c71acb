"""The start-up self-test of an NVFP4 experts kernel: one expert of the model against plain arithmetic.

Kernels for sm_121 have answered garbage from a healthy server. So one expert's weights are kept as they come
from disk; once the layer is in its kernel's format, random inputs go through the kernel, all to that expert,
and through the dequantised matrices.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

logger = logging.getLogger("vllm.glmspark.expert_test")

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
GROUP = 16
TOKENS = 16

WEIGHTS_ONLY = 0.03
"""Relative error allowed to kernels with 16-bit inputs: bf16 keeps 8 bits, sums are in float32."""
ROUNDED_INPUTS = 0.3
"""To kernels that round inputs to 4 bits, twice: about 0.10 each (measured on weights: 0.094 to 0.098), and
what they do to outliers. Garbage is off by 1 and more."""

_EXPERT = re.compile(r"^(.*\blayers\.(\d+)\.mlp\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.(.+)$")
_PARTS = ("weight", "weight_packed", "weight_scale", "weight_scale_2", "weight_global_scale")


class ExpertTestError(RuntimeError):
    """A kernel computes something else than the checkpoint's expert; the message says by how much."""


@dataclass(frozen=True)
class Verdict:
    """What the test found: the relative error (nan for no finite output), and how much is allowed."""

    error: float
    allowed: float

    @property
    def passed(self) -> bool:
        """Whether the output is finite and near enough."""
        return self.error <= self.allowed  # false for nan


def dequantised(parts: dict[str, torch.Tensor]) -> torch.Tensor:
    """A matrix in float32 [outputs, inputs] from its NVFP4 parts, in compressed-tensors' or ModelOpt's names.

    Lower four bits first; value times block scale, times `weight_scale_2` or divided by
    `weight_global_scale`.
    """
    packed = parts.get("weight_packed", parts.get("weight"))
    if packed is None:
        raise ExpertTestError(f"an expert has the parts {', '.join(sorted(parts))}, but no packed weight")
    packed = packed.view(torch.uint8)
    table = torch.tensor(E2M1, dtype=torch.float32, device=packed.device)
    values = torch.stack((table[(packed & 0x0F).long()], table[(packed >> 4).long()]), dim=-1).flatten(-2)
    scale = parts["weight_scale"].float()
    if "weight_scale_2" in parts:
        scale = scale * parts["weight_scale_2"].float()
    else:
        scale = scale / parts["weight_global_scale"].float()
    return (values.unflatten(-1, (-1, GROUP)) * scale[..., None]).flatten(-2)


def expert_output(
    inputs: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """What the expert gives for `inputs` [tokens, hidden], in float32: SwiGLU between its three matrices."""
    x = inputs.float()
    return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T


def compare(found: torch.Tensor, wanted: torch.Tensor, allowed: float) -> Verdict:
    """The norm of the difference over the norm of what is wanted."""
    found, wanted = found.float(), wanted.float()
    if not bool(torch.isfinite(found).all()):
        return Verdict(float("nan"), allowed)
    return Verdict(float((found - wanted).norm() / wanted.norm().clamp_min(1e-30)), allowed)


class OneExpert:
    """Keeps the parts of one expert of one layer as its weights come by: the first one of the stream."""

    def __init__(self) -> None:
        self.layer: int | None = None
        self.expert: int | None = None
        self.parts: dict[str, dict[str, torch.Tensor]] = {}

    def watch(self, weights: Any, present: Any) -> Iterator[tuple[str, Any]]:
        """`weights`, unchanged. present(layer, expert): whether this rank holds that expert."""
        for name, tensor in weights:
            match = _EXPERT.match(name)
            if (
                match
                and match[5] in _PARTS
                and (self.layer is not None or present(int(match[2]), int(match[3])))
            ):
                place = (int(match[2]), int(match[3]))
                if self.layer is None:
                    self.layer, self.expert = place
                if place == (self.layer, self.expert):
                    self.parts.setdefault(match[4], {})[match[5]] = tensor.detach().to("cpu", copy=True)
            yield name, tensor

    def matrices(self, tp_rank: int, tp_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gate, up and down in float32, cut to one tensor-parallel rank's share of the expert's width."""
        if missing := sorted({"gate_proj", "up_proj", "down_proj"} - set(self.parts)):
            raise ExpertTestError(f"expert {self.expert} of layer {self.layer} has no {', '.join(missing)}")
        gate, up, down = (dequantised(self.parts[name]) for name in ("gate_proj", "up_proj", "down_proj"))
        width = gate.shape[0] // tp_size
        mine = slice(tp_rank * width, (tp_rank + 1) * width)
        return gate[mine], up[mine], down[:, mine]


def run(layer: Any, method: Any, one: OneExpert) -> Verdict:
    """Send random inputs through the layer's kernel, all to the one expert, and compare.

    layer: vLLM's RoutedExperts, in its kernel's format. method: its quantization method.
    """
    parallel = layer.moe_config.moe_parallel_config
    width = (0, 1) if parallel.use_ep else (parallel.tp_rank, parallel.tp_size)
    gate, up, down = one.matrices(*width)
    device = next(layer.parameters()).device
    hidden = gate.shape[1]
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(TOKENS, hidden, generator=generator).to(device, layer.moe_config.in_dtype)
    experts, chosen = layer.global_num_experts, layer.moe_config.experts_per_token
    expert = one.expert or 0
    ids = torch.tensor([(expert + n) % experts for n in range(chosen)], dtype=torch.int32, device=device)
    weights = torch.zeros(TOKENS, chosen, dtype=torch.float32, device=device)
    weights[:, 0] = 1.0
    padded = layer.moe_config.hidden_dim - hidden
    given = torch.nn.functional.pad(inputs, (0, padded)) if padded > 0 else inputs
    found = method.apply(layer, given.clone(), weights, ids.repeat(TOKENS, 1), None, None)
    wanted = expert_output(inputs.cpu(), gate, up, down)
    allowed = WEIGHTS_ONLY if weights_only(method) else ROUNDED_INPUTS
    return compare(found[:, :hidden].cpu(), wanted, allowed)


def weights_only(method: Any) -> bool:
    """Whether the method's kernel takes inputs as they are."""
    backend = str(getattr(getattr(method, "nvfp4_backend", None), "value", ""))
    return bool(getattr(method, "use_a16", False)) or backend.upper() in {"MARLIN", "HUMMING"}
