"""What a plan should say beside its numbers: how sure it is, and what stands in the way of a start."""

from __future__ import annotations

from glmspark.config.units import format_size
from glmspark.plan.ranks import COMFORT_BYTES, uses_dsa
from glmspark.plan.startable import refused
from glmspark.plan.study import Study

__all__ = ["notes_of"]


def notes_of(found: Study) -> list[str]:
    """In words, the most important first."""
    recipe, outline, site = found.recipe, found.outline, found.site
    notes = []
    if (error := refused(recipe, outline, site.platform)) is not None:
        notes.append(f"`up` refuses this: {error.message}" + (f"; {error.next}" if error.next else ""))
    experts, tp = outline.architecture.experts, recipe.layout.tp
    if recipe.engine.args.get("enable_expert_parallel") and experts % tp:
        notes.append(f"{experts} experts do not divide by {tp}: some ranks hold one more, and are waited for")
    notes += [f"not yet: {sentence}" for sentence in recipe.lacks]
    length, topk = recipe.engine.max_model_len, outline.architecture.index_topk
    if topk is not None and length > topk and not uses_dsa(recipe, outline, site.platform):
        notes.append(f"attention is dense: beyond {topk:,} tokens that is not the model as trained")
    if site.platform == "cuda" and 0 <= found.shortest.left < COMFORT_BYTES:
        left = found.shortest.left + found.shortest.memory.reserve
        notes.append(
            f"tight: {format_size(left)} stay free on {found.shortest.node}; with less than 3 GiB a node "
            "may become slow to answer, and the guard lets requests wait"
        )
    if not outline.exact:
        notes.append(
            f"weights by what is known of {outline.name}; its own headers, once it is here, are exact"
        )
    if not site.measured:
        notes.append("for Sparks as they come; --cluster cluster.yaml plans for yours as they are")
    if site.platform == "cpu":
        notes.append("speed is predicted for GB10s only")
    return notes
