"""What a plan's rules look at: a recipe, its checkpoint, and what it is to run on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from glmspark.config.recipe import Recipe
from glmspark.models.checkpoint import Checkpoint

__all__ = ["GB10", "Setting"]

GB10 = (12, 1)


@dataclass(frozen=True)
class Setting:
    """What a rule looks at. capability: of the GPUs, a GB10's if not given. all_pairs: whether every node
    reaches every other directly, which a ring of cables does not. nccl: its version, where known. dsa:
    whether attention is sparse, where that is known without a checkpoint."""

    recipe: Recipe
    checkpoint: Checkpoint | None
    platform: Literal["cpu", "cuda"]
    tp: int = 1
    pp: int = 1
    dcp: int = 1
    nodes: int = 1
    capability: tuple[int, int] | None = GB10
    all_pairs: bool = True
    nccl: tuple[int, ...] | None = None
    dsa: bool | None = None

    def arg(self, name: str, default: Any = None) -> Any:
        """An argument of vLLM's that the recipe sets under engine.args."""
        return self.recipe.engine.args.get(name, default)

    @property
    def speculation(self) -> dict[str, Any]:
        """vLLM's speculative_config as the recipe gives it: method, num_speculative_tokens and the rest."""
        draft, config = self.recipe.draft, self.arg("speculative_config")
        if draft is not None:
            return {**draft.args, "method": draft.method, "num_speculative_tokens": draft.tokens}
        if isinstance(config, str):
            config = json.loads(config)
        return config if isinstance(config, dict) else {}

    @property
    def method(self) -> str:
        """How tokens are drafted; empty where none are."""
        return str(self.speculation.get("method", ""))

    @property
    def cuda12(self) -> bool:
        """Whether this runs on GPUs of compute capability 12, of which a GB10 is one."""
        return self.platform == "cuda" and self.capability is not None and self.capability[0] == 12

    @property
    def sparse(self) -> bool:
        """Whether attention is DSA."""
        if self.dsa is not None:
            return self.dsa
        model = self.checkpoint
        if self.platform == "cpu" or self.recipe.engine.dense_attention or model is None:
            return False
        return model.architecture.index_topk is not None and model.has_indexer

    @property
    def quantization(self) -> str | None:
        """The checkpoint's quant_method."""
        return self.checkpoint.architecture.quantization if self.checkpoint is not None else None
