"""Whether `up` would start a recipe at all, by what is known without looking at nodes or headers."""

from __future__ import annotations

from typing import Literal

from glmspark.config.recipe import Recipe
from glmspark.models.outline import Outline
from glmspark.plan.errors import PlanError
from glmspark.plan.known_bad import check_known_bad
from glmspark.plan.ranks import drafts_of, uses_dsa
from glmspark.plan.setting import Setting

__all__ = ["refused"]


def refused(recipe: Recipe, outline: Outline, platform: Literal["cpu", "cuda"]) -> PlanError | None:
    """Why `up` would refuse it, None where nothing is known against it."""
    layout, draft = recipe.layout, recipe.draft
    setting = Setting(
        recipe,
        None,
        platform,
        tp=layout.tp,
        pp=layout.pp,
        dcp=layout.dcp,
        nodes=layout.world,
        dsa=uses_dsa(recipe, outline, platform),
    )
    try:
        check_known_bad(setting)
    except PlanError as error:
        return error
    if drafts_of(recipe) and draft is not None and draft.method == "mtp" and not outline.has_mtp:
        return PlanError("it drafts with MTP, and the checkpoint has no MTP layer", next="draft otherwise")
    return None
