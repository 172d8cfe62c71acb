"""What to change for more speed: candidates that fit, by what they cost and by what they gain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from glmspark.config.recipe import Recipe
from glmspark.models.outline import Outline
from glmspark.plan.errors import PlanError
from glmspark.plan.settings import Asked, apply
from glmspark.plan.site import Seat, Site, stock_site
from glmspark.plan.speed.links import Link
from glmspark.plan.speed.text import Text
from glmspark.plan.split import valid_tps
from glmspark.plan.startable import refused
from glmspark.plan.study import Study, study

__all__ = ["Change", "another_node", "cheapest", "speed_of", "with_nodes"]

_WORTH = 1.03
"""A gain below three per cent is within the noise of any measurement."""


@dataclass(frozen=True)
class Change:
    """what: in words. cost: 1 a flag, 2 a setting of nodes or image, 3 cables or nodes. before, after:
    tokens a second of all streams."""

    what: str
    how: str
    cost: int
    before: float
    after: float

    @property
    def gain(self) -> float:
        """after / before."""
        return self.after / self.before

    def to_json(self) -> dict[str, Any]:
        """Data."""
        names = ("what", "how", "cost")
        speeds = {"before": round(self.before, 2), "after": round(self.after, 2)}
        return {**{name: getattr(self, name) for name in names}, **speeds, "gain": round(self.gain, 3)}


def cheapest(found: Study, *, streams: int, depth: int, text: Text, count: int = 3) -> list[Change]:
    """The cheapest changes that help, most gain first. One of each kind counts, the best."""
    best: dict[str, Change] = {}
    for kind, change in _all(found, streams, depth, text):
        if change.gain >= _WORTH and (kind not in best or change.after > best[kind].after):
            best[kind] = change
    cheap = sorted(best.values(), key=lambda one: (one.cost, -one.gain))[:count]
    return sorted(cheap, key=lambda one: -one.gain)


def speed_of(found: Study, text: Text) -> float:
    """Tokens a second of all streams, 0 where no speed is predicted; where nothing drafts the text does not
    matter."""
    if not found.speeds:
        return 0.0
    return found.speeds.get(text, found.speeds.get("any", next(iter(found.speeds.values())))).decode.value


def _all(found: Study, streams: int, depth: int, text: Text) -> Iterator[tuple[str, Change]]:
    before, startable = speed_of(found, text), _startable(found)

    def change(what: str, how: str, cost: int, recipe: Recipe, site: Site) -> Change | None:
        after = _try(recipe, found.outline, site, streams, depth, text, startable=startable)
        return None if after is None else Change(what, how, cost, before, after)

    for kind, what, how, cost, recipe, site in _candidates(found):
        made = change(what, how, cost, recipe, site)
        if made is not None:
            yield kind, made


def _candidates(found: Study) -> Iterator[tuple[str, str, str, int, Recipe, Site]]:
    recipe, site = found.recipe, found.site
    engine, layout = recipe.engine, recipe.layout
    if engine.enforce_eager:
        graphs = recipe.model_copy(update={"engine": engine.model_copy(update={"enforce_eager": False})})
        yield "graphs", "CUDA graphs instead of eager", "engine.enforce_eager: false", 1, graphs, site
    if found.outline.has_mtp and found.outline.architecture.mtp_layers:
        for tokens in (1, 2, 3, 4, 5):
            if recipe.draft is None or recipe.draft.tokens != tokens or recipe.draft.method != "mtp":
                asked = apply(recipe, Asked(spec=("mtp", tokens)))
                what = f"MTP of {tokens}" + (f" instead of {_drafts(recipe)}" if recipe.draft else "")
                yield "draft", what, f"--spec mtp:{tokens}", 1, asked, site
    if recipe.draft is not None and recipe.draft.method != "mtp":
        for tokens in (2, 3, 5, 7):
            if tokens != recipe.draft.tokens:
                asked = apply(recipe, Asked(spec=(recipe.draft.method, tokens)))
                what = f"{recipe.draft.method} of {tokens} instead of {recipe.draft.tokens}"
                yield "draft", what, f"--spec {recipe.draft.method}:{tokens}", 1, asked, site
    for dcp in (1, 2, 4):
        if dcp < layout.dcp and layout.tp % dcp == 0:
            asked = apply(recipe, Asked(dcp=dcp))
            yield "dcp", f"DCP{dcp} instead of DCP{layout.dcp}", f"--dcp {dcp}", 1, asked, site
    yield from _link_candidates(found)


def _link_candidates(found: Study) -> Iterator[tuple[str, str, str, int, Recipe, Site]]:
    recipe, site = found.recipe, found.site
    if recipe.layout.world == 1:
        return
    if site.link.kind == "tcp":
        roce = replace(site, link=Link("roce", 200.0, site.link.ring))
        yield "link", "RDMA instead of sockets", "`glmspark doctor` says what keeps it off", 2, recipe, roce
    if site.link.kind == "roce":
        one = replace(site, link=Link("one-shot", site.link.gbit, site.link.ring))
        yield "link", "one-shot collectives over RDMA instead of NCCL's", "b12x in the image", 2, recipe, one


def _drafts(recipe: Recipe) -> str:
    draft = recipe.draft
    return "none" if draft is None else f"{draft.tokens} by {draft.method}"


def _startable(found: Study) -> bool:
    return refused(found.recipe, found.outline, found.site.platform) is None


def _try(
    recipe: Recipe, outline: Outline, site: Site, streams: int, depth: int, text: Text, *, startable: bool
) -> float | None:
    """Tokens a second, None for what does not fit. startable: None for what `up` would refuse, too: nothing
    that starts is changed into what does not."""
    if startable and refused(recipe, outline, site.platform) is not None:
        return None
    try:
        tried = study(recipe, outline, site, streams=streams, depth=depth, texts=(text,))
    except PlanError:
        return None
    return speed_of(tried, text) if tried.fits else None


def another_node(found: Study, *, streams: int, depth: int, text: Text) -> Change | None:
    """What more nodes would buy: the fewest that help, else the best that up to twice as many can do. None
    where nothing fits on them."""
    recipe, site, world = found.recipe, found.site, found.recipe.layout.world
    before, startable = speed_of(found, text), _startable(found)
    best: Change | None = None
    for count in range(world + 1, 2 * world + 1):
        bigger = with_nodes(site, count)
        for tp in valid_tps(found.outline.architecture):
            if count % tp:
                continue
            pp = count // tp
            asked = apply(recipe, Asked(tp=tp, pp=pp))
            after = _try(asked, found.outline, bigger, streams, depth, text, startable=startable)
            more = f"{count - world} more node{'s' if count > world + 1 else ''}"
            if after is not None and (best is None or after > best.after):
                best = Change(f"{more}: TP{tp} PP{pp} on {count}", f"--tp {tp} --pp {pp}", 3, before, after)
        if best is not None and best.gain >= _WORTH:
            return best
    return best


def with_nodes(site: Site, count: int) -> Site:
    """A site's first nodes, and Sparks as they come where it has fewer than `count`."""
    if len(site.seats) >= count:
        return site.first(count)
    stock = stock_site(count, site.link).seats
    extra = tuple(
        Seat(f"another{n + 1}", one.total, one.available, f"another{n + 1}")
        for n, one in enumerate(stock[len(site.seats) :])
    )
    return replace(site, seats=site.seats + extra)
