"""The files people write, and where glmspark keeps its own."""

from glmspark.config.loader import (
    RecipeError,
    check_recipe,
    load_recipe,
    parse_recipe,
    read_recipe,
    recipe_names,
    recipe_path,
)
from glmspark.config.paths import state_dir
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
