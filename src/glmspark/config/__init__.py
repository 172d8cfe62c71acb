"""The files people write, and where glmspark keeps its own.

The names below are loaded when they are first used: most processes of a deployment need to know where records
lie, and nothing of recipes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from glmspark.config.paths import recipe_names, state_dir

if TYPE_CHECKING:
    from glmspark.config.loader import (
        RecipeError,
        check_recipe,
        load_recipe,
        parse_recipe,
        read_recipe,
        recipe_path,
    )
    from glmspark.config.recipe import Recipe

__all__ = [
    "Recipe",
    "RecipeError",
    "check_recipe",
    "load_recipe",
    "parse_recipe",
    "read_recipe",
    "recipe_names",
    "recipe_path",
    "state_dir",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(
        import_module("glmspark.config.recipe" if name == "Recipe" else "glmspark.config.loader"), name
    )
