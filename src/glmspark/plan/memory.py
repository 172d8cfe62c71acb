"""The engine's own sizes: elements of its dtype, and the scratch of its prefill on the CPU."""

from __future__ import annotations

from glmspark.models.architecture import Architecture

__all__ = ["ELEMENT_BYTES", "prefill_bytes"]

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def prefill_bytes(architecture: Architecture, tokens: int, *, tp: int) -> int:
    """Scratch of the CPU's prefill attention for one prompt of so many tokens, in bytes.

    vLLM's CPU_SDPA_MLA backend computes a whole prompt at once in float32: per head and pair of tokens a
    score and its scaled copy or its softmax (8 bytes), and for all heads two masks (2 bytes). Several prompts
    in a step share one token budget, so their squares sum to no more. Measured at 8,192 tokens and 2 heads:
    1,270 MiB over idle, of which this formula gives 1,152 MiB.
    """
    heads = architecture.heads // tp
    return tokens * tokens * (8 * heads + 2)
