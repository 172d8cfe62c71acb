"""Every layout of a model that fits on some nodes, best first by what is aimed at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from glmspark.config.recipe import Recipe
from glmspark.config.units import format_size
from glmspark.models.outline import Outline
from glmspark.plan.changes import speed_of, with_nodes
from glmspark.plan.checks import check_positions
from glmspark.plan.errors import PlanError
from glmspark.plan.ranks import request_bytes
from glmspark.plan.settings import Asked, apply
from glmspark.plan.site import Site
from glmspark.plan.speed.text import Text
from glmspark.plan.split import places, valid_tps
from glmspark.plan.startable import refused
from glmspark.plan.study import Study, study

__all__ = ["AIMS", "MANY", "Aim", "Option", "refusal_of", "search"]

Aim = Literal["stream", "context", "throughput"]
AIMS: tuple[Aim, ...] = ("stream", "context", "throughput")
MANY = 8
"""Streams at once that throughput is compared at, where no other number is asked for."""
_MOST_NODES = 64
_NOTHING = Asked()


@dataclass(frozen=True)
class Option:
    """One layout. stream: tokens a second of one request. many: of `streams` together; both 0 on CPUs.
    refused: why `up` would not start it, where it would not."""

    study: Study
    stream: float
    many: float
    streams: int = MANY
    refused: PlanError | None = None

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
            "streams": self.streams,
            "all_streams": round(self.many, 2),
            "refused": None if self.refused is None else self.refused.message,
        }


def search(
    recipe: Recipe,
    outline: Outline,
    site: Site,
    *,
    aim: Aim,
    text: Text,
    depth: int = 1000,
    streams: int = MANY,
    fixed: Asked = _NOTHING,
) -> list[Option]:
    """All that fit, best first. The KV cache of each is what one request of the recipe's context takes, or
    of the largest context where that is less; the recipe's own needs and capture sizes stay out of it.

    streams: at once that throughput is compared at. fixed: its tp, pp, dcp and spec, where given, are those
    of every layout. Raises PlanError for a context that the model was not made for.
    """
    check_positions(recipe, outline.architecture)
    found = []
    for asked in _layouts(recipe, outline, len(site.seats), fixed):
        option = _option(recipe, outline, site, asked, text, depth, streams)
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


def refusal_of(recipe: Recipe, outline: Outline, site: Site, *, fixed: Asked = _NOTHING) -> PlanError:
    """Why `search` finds nothing: the layout that is least short, and the fewest nodes that would do."""
    count = len(site.seats)
    plain = _plain(recipe, outline, count, fixed)
    tried = [one for asked in plain if (one := _least(recipe, outline, site, asked))]
    nodes = f"{count} node{'s' * (count != 1)}"
    if tried:
        best = max(tried, key=lambda one: one.shortest.left)
        what = f"{outline.name} does not fit on up to {nodes}: {best.layout}, which comes nearest, "
        what += f"is {format_size(max(-best.shortest.left, 0))} short on rank {best.shortest.place.rank}"
    else:
        what = f"no layout as asked for is possible on up to {nodes}"
    more = 0
    if site.platform == "cuda":
        more = next(
            (
                world
                for world in range(count + 1, _MOST_NODES + 1)
                for asked in _plain(recipe, outline, world, fixed)
                if (asked.tp or 1) * (asked.pp or 1) == world
                and (one := _least(recipe, outline, with_nodes(site, world), asked)) is not None
                and one.fits
                and one.context > 0
            ),
            0,
        )
    ways = [f"`glmspark plan --search --nodes {more}`: so many would hold it"] if more else []
    return PlanError(what, step="search", next=", or ".join([*ways, "choose a smaller checkpoint"]))


def _plain(recipe: Recipe, outline: Outline, nodes: int, fixed: Asked) -> Iterator[Asked]:
    """The layouts that hold least: without a drafter or context parallelism that nobody asked for."""
    for asked in _layouts(recipe, outline, nodes, fixed):
        if (fixed.dcp or 1) == asked.dcp and (fixed.spec or ("", 0)) == asked.spec:
            yield asked


def _least(recipe: Recipe, outline: Outline, site: Site, asked: Asked) -> Study | None:
    """A layout with the smallest pool, None where it is not possible."""
    try:
        changed = apply(recipe, asked)
        return study(_with_pool(changed, outline, site.platform, 64), outline, site, texts=())
    except PlanError:
        return None


def _layouts(recipe: Recipe, outline: Outline, nodes: int, fixed: Asked) -> Iterator[Asked]:
    drafts: list[tuple[str, int]] = [("", 0)]
    if outline.has_mtp:
        drafts += [("mtp", tokens) for tokens in (1, 2, 3)]
    if recipe.draft is not None and recipe.draft.method != "mtp":
        drafts.append((recipe.draft.method, recipe.draft.tokens))
    if fixed.spec is not None:
        drafts = [fixed.spec]
    layers = len(outline.architecture.layers)
    shared = outline.architecture.linear is None
    for tp in valid_tps(outline.architecture) if fixed.tp is None else (fixed.tp,):
        stages = range(1, min(nodes // tp, layers) + 1)
        for pp in stages if fixed.pp is None else [pp for pp in stages if pp == fixed.pp]:
            for dcp in (1, 2, 4, 8) if fixed.dcp is None else (fixed.dcp,):
                if tp % dcp == 0 and (shared or dcp == 1):
                    for draft in drafts:
                        if pp == 1 or not draft[0] or fixed.spec is not None:
                            yield Asked(tp=tp, pp=pp, dcp=dcp, spec=draft)


def _option(
    recipe: Recipe, outline: Outline, site: Site, asked: Asked, text: Text, depth: int, streams: int
) -> Option | None:
    """A layout with a pool for one request of the recipe's context, None where even the weights do not
    fit."""
    try:
        changed = apply(recipe, asked)
        smallest = _least(recipe, outline, site, asked)
        largest = 0 if smallest is None else smallest.context
        if largest <= 0:
            return None
        changed = apply(changed, Asked(context=min(changed.engine.max_model_len, largest)))
        sized = _with_pool(changed, outline, site.platform, changed.engine.max_model_len)
        one = study(sized, outline, site, depth=depth, texts=(text,))
        many = study(sized, outline, site, streams=streams, depth=depth, texts=(text,))
    except PlanError:
        return None
    if not one.fits:
        return None
    why = refused(sized, outline, site.platform)
    return Option(one, speed_of(one, text), speed_of(many, text), streams, why)


def _with_pool(recipe: Recipe, outline: Outline, platform: str, context: int) -> Recipe:
    """With a KV cache for one request of so many tokens on the rank that needs most for it."""
    layout = recipe.layout
    short = apply(recipe, Asked(context=context))
    sizes = [
        request_bytes(short, outline, place, platform, tp=layout.tp, dcp=layout.dcp, context=context)
        for place in places(len(outline.architecture.layers), layout.tp, layout.pp)[:: layout.tp]
    ]
    return apply(short, Asked(kv_cache=max(sizes)))
