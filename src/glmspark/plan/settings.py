"""A recipe with what was asked for on the command line in place of its own settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from glmspark.config.recipe import Draft, Recipe
from glmspark.plan.errors import PlanError

__all__ = ["METHODS", "Asked", "apply", "drafter_key", "parse_spec"]

METHODS = ("mtp", "ngram", "suffix", "dflash", "dspark", "none")
_TOKENS = {"mtp": 2, "ngram": 3, "suffix": 8, "dflash": 7, "dspark": 3}
_MOST_DRAFTS = 64


@dataclass(frozen=True)
class Asked:
    """What replaces the recipe's: None where it stays. spec: a drafter and its tokens, ("", 0) for none."""

    tp: int | None = None
    pp: int | None = None
    dcp: int | None = None
    context: int | None = None
    concurrency: int | None = None
    kv_cache: int | None = None
    spec: tuple[str, int] | None = None


def parse_spec(text: str) -> tuple[str, int]:
    """A drafter as people write it: mtp, mtp:3, none. Raises PlanError."""
    method, _, count = text.partition(":")
    if method == "none" and not count:
        return "", 0
    known = method in METHODS and method != "none"
    good = not count or (len(count) < 9 and count.isdecimal() and 1 <= int(count) <= _MOST_DRAFTS)
    if not known or not good:
        raise PlanError(
            f"{text!r} is no drafter",
            step="plan the drafter",
            next=f"write one of {', '.join(METHODS)}, or with 1 to {_MOST_DRAFTS} tokens: mtp:3",
        )
    return method, int(count) if count else _TOKENS[method]


def apply(recipe: Recipe, asked: Asked) -> Recipe:
    """The recipe as asked. What it says of a rank's memory is dropped with the layout it was said of, and its
    ladder of capture sizes with the drafter it was made for. Raises PlanError for a drafter without
    source."""
    layout, engine, draft, needs = recipe.layout, recipe.engine, recipe.draft, recipe.needs
    tp, pp = asked.tp, asked.pp
    if tp is not None or pp is not None:
        tp, pp = tp or 1, pp or 1
    else:
        tp, pp = layout.tp, layout.pp
    dcp = asked.dcp if asked.dcp is not None else (layout.dcp if tp % layout.dcp == 0 else 1)
    if tp % dcp:
        raise PlanError(
            f"DCP {dcp} does not divide TP {tp}: it shares out TP's ranks",
            step="plan the layout",
            next=f"choose --dcp from {', '.join(str(n) for n in range(1, tp + 1) if tp % n == 0)}",
        )
    changes: dict[str, Any] = {}
    if asked.context is not None:
        changes["max_model_len"] = asked.context
    if asked.concurrency is not None:
        changes["max_num_seqs"] = asked.concurrency
        changes["max_num_batched_tokens"] = max(engine.max_num_batched_tokens, asked.concurrency)
    if asked.kv_cache is not None:
        changes["kv_cache_memory"] = asked.kv_cache
    args = dict(engine.args)
    if asked.spec is not None:
        draft = _draft(recipe, *asked.spec)
        args.pop("speculative_config", None)
    if asked.spec is not None or asked.concurrency is not None:
        args.pop("cudagraph_capture_sizes", None)
    changes["args"] = args
    if asked != Asked():
        world = tp * pp
        nodes = world if needs.nodes is not None else None
        needs = needs.model_copy(update={"memory_per_rank": None, "nodes": nodes})
    return recipe.model_copy(
        update={
            "layout": layout.model_copy(update={"tp": tp, "pp": pp, "dcp": dcp}),
            "engine": engine.model_copy(update=changes),
            "draft": draft,
            "needs": needs,
        }
    )


def _draft(recipe: Recipe, method: str, tokens: int) -> Draft | None:
    if not method:
        return None
    own = recipe.draft
    if own is not None and own.method == method:
        return own.model_copy(update={"tokens": tokens})
    if method in ("dflash", "dspark"):
        raise PlanError(
            f"{recipe.name} names no checkpoint for a {method} drafter",
            step="plan the drafter",
            next="write draft.source in a copy of the recipe, or use mtp",
        )
    return Draft(method=cast(Literal["mtp", "ngram", "suffix"], method), tokens=tokens)


def drafter_key(recipe: Recipe, *, flash: bool) -> str:
    """Whose acceptance a recipe's drafter has, see `speed.text.ACCEPTANCE`; empty without one. flash: whether
    the model is GLM-5.3-Flash."""
    if recipe.draft is None:
        config = recipe.engine.args.get("speculative_config")
        method = str(config.get("method", "")) if isinstance(config, dict) else ""
    else:
        method = recipe.draft.method
    if not method:
        return ""
    if method in ("ngram", "suffix"):
        return "lookup"
    block = {"dflash": "dflash2", "dspark": "dspark", "eagle3": "dspark", "draft_model": "dspark"}
    kind = block.get(method, "mtp")
    return f"{kind}-flash" if flash and kind != "dspark" else kind
