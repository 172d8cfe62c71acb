"""GLM with sparse attention on CUDA: vLLM's own classes, with our steps between loader and model.

Imported by vLLM's model registry in worker processes only.
"""

from __future__ import annotations

from vllm.models.deepseek_v32 import DeepseekV32MTP, GlmMoeDsaForCausalLM

from glmspark.engine.model_weights import GlmWeights


class SparseGlm(GlmWeights, GlmMoeDsaForCausalLM):
    """vLLM's GLM with DSA."""


class SparseGlmMTP(GlmWeights, DeepseekV32MTP):
    """vLLM's MTP layer of a GLM with DSA."""

    drafts = True
