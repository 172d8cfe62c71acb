"""What a node has to store of a checkpoint for its rank (`glmspark fetch --only-needed`)."""

from __future__ import annotations

from glmspark.config.recipe import Recipe
from glmspark.models.outline import Outline
from glmspark.plan.checks import drafts_with_mtp
from glmspark.plan.split import Place
from glmspark.plan.weights import on_stage

__all__ = ["divides", "owns_experts", "stored_bytes"]


def owns_experts(recipe: Recipe, tp: int) -> bool:
    """Whether routed experts lie whole on ranks, in even runs of their numbers.

    vLLM does so with expert parallelism where nothing moves them afterwards
    (vllm.model_executor.layers.fused_moe: expert_placement_strategy "linear").
    """
    arguments = recipe.engine.args
    if tp == 1 or arguments.get("enable_expert_parallel") is not True or arguments.get("enable_eplb"):
        return False
    return bool(arguments.get("expert_placement_strategy", "linear") == "linear")


def divides(recipe: Recipe) -> bool:
    """Whether nodes need less than all of the checkpoint: TP alone splits within tensors."""
    return recipe.layout.pp > 1 or owns_experts(recipe, recipe.layout.tp)


def stored_bytes(recipe: Recipe, outline: Outline, place: Place) -> int:
    """Bytes of tensors, as stored, of which a rank reads any part."""
    tp = recipe.layout.tp
    ep = owns_experts(recipe, tp) and outline.architecture.experts % tp == 0
    mtp, tied = drafts_with_mtp(recipe) and outline.has_mtp, outline.architecture.tied_embeddings
    return sum(
        one.nbytes // tp if ep and one.experts > 1 else one.nbytes
        for one in outline.weights
        if on_stage(one, place, mtp=mtp, tied=tied)
    )
