"""Rotary position embedding of MLA's query on the CPU: portable code instead of a kernel that is wrong."""

from __future__ import annotations

import ast
from typing import Any

from glmspark.engine.code import Code
from glmspark.engine.model_config import missing_hook, on_glm_config
from glmspark.engine.patch import Finding, Patch, Target

DISABLED = "-rotary_embedding"

_ROPE = "vllm.model_executor.layers.rotary_embedding.base"
_MLA = "vllm.model_executor.layers.mla"
_RESHAPES = {"view", "reshape", "flatten"}


def needed(target: Target) -> str | None:
    """None on the CPU: other platforms have kernels of their own."""
    return None if target.platform == "cpu" else f"{target.platform} has its own kernel"


def precondition(code: Code) -> Finding:
    """Python hands the kernel MLA's three-dimensional query as it is, and the kernel gets it wrong."""
    forward = code.find(_ROPE, "RotaryEmbedding.forward_cpu")
    calls = [item for item in ast.walk(forward) if isinstance(item, ast.Call)]
    names = {item.func.attr for item in calls if isinstance(item.func, ast.Attribute)}
    if "rotary_embedding" not in names:
        return Finding.superseded(f"{_ROPE} does not call the kernel on the CPU any more")
    if names & _RESHAPES:
        return Finding.superseded(f"{_ROPE} reshapes the query before it calls the kernel")
    code.find(_ROPE, "RotaryEmbedding.forward_native")
    if '@CustomOp.register("rotary_embedding")' not in code.source(_ROPE):
        return Finding.no(f"{_ROPE}.RotaryEmbedding is not the custom op rotary_embedding any more")
    if "self.rotary_emb(" not in ast.unparse(code.find(_MLA, "MultiHeadLatentAttentionWrapper.forward")):
        return Finding.no(f"{_MLA} does not call its rotary embedding in forward")
    if missing := missing_hook(code):
        return Finding.no(missing)
    error = kernel_error()
    if error < 1e-4:
        return Finding.superseded(f"the kernel is right to {error:.0e} on a query of several heads")
    return Finding.yes(f"the kernel is off by {error:.1f} on a query of unit numbers in several heads")


def kernel_error() -> float:
    """Largest difference between the kernel's answers for [tokens, heads, size] and [tokens, heads * size].

    The kernel reads one position per head and token, so the positions here are the start of a longer tensor.
    """
    import torch
    from vllm import _custom_ops as ops

    tokens, heads, size = 4, 4, 64
    positions = torch.arange(tokens * heads)[:tokens]
    angles = torch.arange(tokens * heads).float()[:, None] * 0.1 ** torch.arange(size // 2).float()
    table = torch.cat([angles.cos(), angles.sin()], dim=-1)
    rank3 = torch.ones(tokens, heads, size)
    rank2 = torch.ones(tokens, heads * size)
    key = torch.ones(tokens, size)
    ops.rotary_embedding(positions, rank3, key.clone().view(tokens, 1, size), size, table, False)
    ops.rotary_embedding(positions, rank2, key, size, table, False)
    return float((rank3.view_as(rank2) - rank2).abs().max())


def use_portable_code(vllm_config: Any) -> None:
    """Switch the custom op off by vLLM's own flag, unless the flag names the op already."""
    custom_ops = vllm_config.compilation_config.custom_ops
    if not any(entry.lstrip("+-") == DISABLED[1:] for entry in custom_ops):
        custom_ops.append(DISABLED)


def apply() -> None:
    """Register the rule."""
    on_glm_config(use_portable_code)


PATCH = Patch(
    name="cpu-rotary",
    title="Right rotary embedding of MLA's query on the CPU",
    upstream=(
        "RotaryEmbedding.forward_cpu hands a query of shape [tokens, heads, size] to a kernel that takes the "
        "last dimension for all heads: it sees tokens * heads tokens of one head, reads positions past their "
        "end and turns nearly every head by a wrong angle."
    ),
    reason=(
        "with MLA on the CPU every answer is wrong, by little in a random model and by much in a trained one"
    ),
    link="https://github.com/vllm-project/vllm/pull/31643",
    versions=">=0.32,<0.34",
    needed=needed,
    precondition=precondition,
    apply=apply,
)
