"""Every layout of a model that fits on some nodes, best first by what is aimed at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from glmspark.config.recipe import Recipe
from glmspark.models.outline import Outline
from glmspark.plan.changes import speed_of
from glmspark.plan.errors import PlanError
from glmspark.plan.ranks import request_bytes
from glmspark.plan.settings import Asked, apply
from glmspark.plan.site import Site
from glmspark.plan.speed.text import Text
from glmspark.plan.split import places, valid_tps
from glmspark.plan.study import Study, study

__all__ = ["AIMS", "Aim", "Option", "search"]

Aim = Literal["stream", "context", "throughput"]
AIMS: tuple[Aim, ...] = ("stream", "context", "throughput")
_MANY = 8
"""Streams at once that throughput is compared at."""


@dataclass(frozen=True)
class Option:
    """One layout. stream: tokens a second of one request. many: of eight together. context: the largest."""

    study: Study
    stream: float
    many: float

    def to_json(self) -> dict[str, Any]:
        """Data."""
        layout, draft = self.study.recipe.layout, self.study.recipe.draft
        return {
            "tp": layout.tp,
            "pp": layout.pp,
            "dcp": layout.dcp,
            "nodes": layout.world,
            "draft": None if draft is None else {"method": draft.method, "tokens": draft.tokens},
            "largest_context": self.study.context,
            "left": self.study.shortest.left,
            "stream": round(self.stream, 2),
            "eight_streams": round(self.many, 2),
        }


def search(
    recipe: Recipe, outline: Outline, site: Site, *, aim: Aim, text: Text, depth: int = 1000
) -> list[Option]:
    """All that fit, best first. The KV cache of each is what one request of the recipe's context takes, or
    of the largest context where that is less; the recipe's own needs and capture sizes stay out of it."""
    found = []
    for asked in _layouts(recipe, outline, len(site.seats)):
        option = _option(recipe, outline, site, asked, text, depth)
        if option is not None:
            found.append(option)
    return sorted(found, key=lambda one: _rank(one, aim), reverse=True)


def _rank(one: Option, aim: Aim) -> tuple[float, ...]:
    # What two reach alike is decided by the other aims, then by fewer nodes.
    context, nodes = float(one.study.context), -float(one.study.recipe.layout.world)
    if aim == "context":
        return (context, one.stream, one.many, nodes)
    if aim == "throughput":
        return (one.many, one.stream, context, nodes)
    return (one.stream, one.many, context, nodes)


def _layouts(recipe: Recipe, outline: Outline, nodes: int) -> Iterator[Asked]:
    drafts: list[tuple[str, int]] = [("", 0)]
    if outline.has_mtp:
        drafts += [("mtp", tokens) for tokens in (1, 2, 3)]
    if recipe.draft is not None and recipe.draft.method != "mtp":
        drafts.append((recipe.draft.method, recipe.draft.tokens))
    layers = len(outline.architecture.layers)
    shared = outline.architecture.linear is None
    for tp in valid_tps(outline.architecture):
        for pp in range(1, min(nodes // tp, layers) + 1):
            for dcp in (1, 2, 4, 8):
                if tp % dcp == 0 and (shared or dcp == 1):
                    for draft in drafts if pp == 1 else drafts[:1]:
                        yield Asked(tp=tp, pp=pp, dcp=dcp, spec=draft)


def _option(
    recipe: Recipe, outline: Outline, site: Site, asked: Asked, text: Text, depth: int
) -> Option | None:
    """A layout with a pool for one request of the recipe's context, None where even the weights do not
    fit."""
    try:
        changed = apply(recipe, asked)
        largest = study(_with_pool(changed, outline, site.platform, 64), outline, site, texts=()).context
        if largest <= 0:
            return None
        changed = apply(changed, Asked(context=min(changed.engine.max_model_len, largest)))
        sized = _with_pool(changed, outline, site.platform, changed.engine.max_model_len)
        one = study(sized, outline, site, depth=depth, texts=(text,))
        many = study(sized, outline, site, streams=_MANY, depth=depth, texts=(text,))
    except PlanError:
        return None
    return Option(one, speed_of(one, text), speed_of(many, text)) if one.fits else None


def _with_pool(recipe: Recipe, outline: Outline, platform: str, context: int) -> Recipe:
    """With a KV cache for one request of so many tokens on the rank that needs most for it."""
    layout = recipe.layout
    short = apply(recipe, Asked(context=context))
    sizes = [
        request_bytes(short, outline, place, platform, tp=layout.tp, dcp=layout.dcp, context=context)
        for place in places(len(outline.architecture.layers), layout.tp, layout.pp)[:: layout.tp]
    ]
    return apply(short, Asked(kv_cache=max(sizes)))
