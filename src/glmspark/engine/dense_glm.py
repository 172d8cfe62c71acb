"""GLM with dense attention: vLLM's generic model classes, with the DSA indexer left out.

Imported by vLLM's model registry in worker processes only; see patches/dense_attention.py for the why.
Up to `index_topk` tokens of context DSA selects every token, so the dense model computes the same function.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.model_executor.models.deepseek_mtp import DeepSeekMTP
from vllm.model_executor.models.deepseek_v2 import GlmMoeDsaForCausalLM

from glmspark.engine.model_weights import GlmWeights

logger = init_logger("vllm.glmspark.dense_glm")

Weights = Iterable[tuple[str, torch.Tensor]]


def _without_index_topk(config_class: type[Any]) -> type[Any]:
    def absent(_self: Any) -> Any:
        raise AttributeError("index_topk is hidden: this model runs with dense attention")

    return type(f"Dense{config_class.__name__}", (config_class,), {"index_topk": property(absent)})


def hide_index_topk(config: Any) -> None:
    """Make `hasattr(config, "index_topk")` false, which is how vLLM tells a dense model from one with DSA.

    Deleting the attribute is not enough: transformers' config class has a default for it.
    """
    if hasattr(config, "index_topk"):
        config.__dict__.pop("index_topk", None)
        config.__class__ = _without_index_topk(type(config))


class IndexerWeights:
    """Takes the indexer's tensors out of a stream of weights and counts them."""

    def __init__(self) -> None:
        self.skipped = 0

    def leave_out(self, weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
        """All of `weights` but the indexer's."""
        for name, tensor in weights:
            if ".indexer." in name:
                self.skipped += 1
            else:
                yield name, tensor

    def report(self, what: str) -> None:
        """Say how many tensors were left out."""
        logger.info("%s: dense attention, %d indexer weights skipped", what, self.skipped)


class DenseGlm(GlmWeights, GlmMoeDsaForCausalLM):
    """`GlmMoeDsaForCausalLM` without its indexer."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        hide_index_topk(vllm_config.model_config.hf_config)
        super().__init__(vllm_config=vllm_config, prefix=prefix)

    def load_weights(self, weights: Weights) -> set[str]:
        """Load everything but the indexer."""
        indexer = IndexerWeights()
        loaded = super().load_weights(indexer.leave_out(weights))
        indexer.report(type(self).__name__)
        return loaded

    def is_unused_checkpoint_weight(self, name: str) -> bool:
        """Nor is the indexer read."""
        return ".indexer." in name or super().is_unused_checkpoint_weight(name)


class DenseGlmMTP(GlmWeights, DeepSeekMTP):
    """The MTP layer of a dense GLM: it drafts with the attention that its target uses."""

    drafts = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        hide_index_topk(vllm_config.model_config.hf_config)
        if vllm_config.speculative_config is not None:
            hide_index_topk(vllm_config.speculative_config.draft_model_config.hf_config)
        super().__init__(vllm_config=vllm_config, prefix=prefix)

    def load_weights(self, weights: Weights) -> set[str]:
        """Load everything but the indexer."""
        indexer = IndexerWeights()
        loaded = super().load_weights(indexer.leave_out(weights))
        indexer.report(type(self).__name__)
        return loaded

    def is_unused_checkpoint_weight(self, name: str) -> bool:
        """Nor is the indexer read."""
        return ".indexer." in name or super().is_unused_checkpoint_weight(name)
