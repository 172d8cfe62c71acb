"""What was predicted of a running deployment, beside what its metrics say now."""

from __future__ import annotations

import json
import re

from pydantic import ValidationError

from glmspark.config.recipe import Recipe
from glmspark.errors import GlmsparkError
from glmspark.launch.record import Deployment
from glmspark.models.outlines import outline_for
from glmspark.plan.compare import Comparison, Seen, compare
from glmspark.plan.settings import Asked, apply, drafter_key
from glmspark.plan.site import Site, recipe_link, stock_site
from glmspark.plan.speed import Link, Run
from glmspark.plan.split import check_layout
from glmspark.plan.study import run_of

__all__ = ["SAID", "compared", "planned_run"]

NETWORK_LINE = r"Using network [A-Za-z0-9_]+"
"""What NCCL says of its network where NCCL_DEBUG is INFO."""
EAGER_LINE = r"Enforce eager set"
"""What vLLM says where it makes no CUDA graphs."""


def planned_run(deployment: Deployment) -> tuple[Run, str] | None:
    """The deployment as the speed model sees it, and whose acceptance its drafter has; None on CPUs, and
    where nothing is known of its model any more."""
    plan = deployment.plan
    if plan.get("platform") != "cuda":
        return None
    try:
        recipe = Recipe.model_validate_json(json.dumps(deployment.recipe))
        recipe = apply(recipe, Asked(tp=int(plan["tp"]), pp=int(plan["pp"])))
        outline = outline_for(recipe.model.source)
        check_layout(outline.architecture, recipe.layout.tp, recipe.layout.pp)
        ranks = plan["ranks"]
        link = recipe_link(recipe, hcas=[bool(rank.get("hcas")) for rank in ranks])
        site: Site = stock_site(len(ranks), link if len(ranks) > 1 else Link("none"))
        run = run_of(recipe, outline, site)
    except (GlmsparkError, ValidationError, KeyError, TypeError, ValueError):
        return None
    return run, drafter_key(recipe, flash=outline.architecture.linear is not None)


def compared(
    deployment: Deployment,
    *,
    speed: float | None,
    running: float | None,
    tokens: float | None,
    said: str = "",
    clock: float | None = None,
) -> Comparison | None:
    """Measured beside predicted; None while nothing is asked of it, and where no prediction can be made.

    speed: tokens a second. tokens: that a step makes. said: lines of rank 0's log, see `SAID`. clock: of the
    slowest GPU, MHz.
    """
    if not speed or not running:
        return None
    planned = planned_run(deployment)
    if planned is None:
        return None
    run, drafter = planned
    return compare(run, drafter, Seen(speed, running, tokens, *_read(said), clock))


SAID = f"{NETWORK_LINE}|{EAGER_LINE}"
"""What to look for in a log: an expression that grep -E and Python read alike."""


def _read(said: str) -> tuple[str | None, bool | None]:
    """NCCL's network, and whether vLLM runs eagerly, by lines of a log; None for what they do not say."""
    network = re.findall(NETWORK_LINE, said)
    eager = True if re.search(EAGER_LINE, said) else None
    return (network[-1].removeprefix("Using network ") if network else None), eager
