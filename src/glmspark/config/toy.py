"""A recipe at toy scale: the same layout and engine settings over a glm-tiny, on CPUs.

What a recipe does to its ranks (layout, backend, arguments, environment, optional patches) is kept, so that
the very same recipe can be tried without a GPU; sizes become glm-tiny's, and so do the canaries.
"""

from __future__ import annotations

from glmspark.config.loader import load_recipe
from glmspark.config.recipe import Needs, Patches, Recipe
from glmspark.errors import UsageError

__all__ = ["toy_of"]


def toy_of(recipe: Recipe) -> Recipe:
    """The toy counterpart of a recipe, by its section `toy`. Raises UsageError where it has none.

    Raises UsageError also where `toy` leaves out what is not there: it would no longer say what differs.
    """
    toy = recipe.toy
    if toy is None:
        raise UsageError(
            f"{recipe.name} has no toy counterpart",
            next="glm-tiny is one itself" if recipe.needs.nodes is None else "leave --toy out",
        )
    tiny = load_recipe("glm-tiny")
    named = {*recipe.engine.args, *recipe.engine.env}
    if strange := [name for name in toy.without if name not in named]:
        raise UsageError(f"{recipe.name}: toy.without names {strange[0]}, which engine does not set")
    engine = recipe.engine.model_copy(
        update={
            "dtype": toy.dtype,
            "max_model_len": tiny.engine.max_model_len,
            "max_num_seqs": tiny.engine.max_num_seqs,
            "max_num_batched_tokens": tiny.engine.max_num_batched_tokens,
            "kv_cache_memory": tiny.engine.kv_cache_memory,
            "enforce_eager": True,
            "reasoning_parser": tiny.engine.reasoning_parser,
            "tool_call_parser": tiny.engine.tool_call_parser,
            "args": {k: v for k, v in recipe.engine.args.items() if k not in toy.without},
            "env": {k: v for k, v in recipe.engine.env.items() if k not in toy.without},
        }
    )
    known = [canary.name or canary.probe for canary in tiny.canaries]
    if strange := [name for name in toy.without_canaries if name not in known]:
        raise UsageError(f"{recipe.name}: toy.without_canaries names {strange[0]}, which glm-tiny has not")
    return recipe.model_copy(
        update={
            "name": f"{recipe.name}-toy"[:63],
            "description": f"{recipe.name} at toy scale. {toy.differs}",
            "model": recipe.model.model_copy(update={"source": toy.source, "served_name": "glm-tiny"}),
            "engine": engine,
            "draft": toy.draft,
            "patches": Patches(optional=recipe.patches.optional),
            "needs": Needs(platform="cpu"),
            "canaries": tuple(
                canary
                for canary, name in zip(tiny.canaries, known, strict=True)
                if name not in toy.without_canaries
            ),
            "lacks": toy.lacks,
            "toy": None,
            "measured": (),
        }
    )
