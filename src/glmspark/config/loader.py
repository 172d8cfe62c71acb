"""Reading recipes: by name or path, every fault with its file and line."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from glmspark.config.canaries import LongPromptCanary, RanksCanary
from glmspark.config.paths import expand, recipe_names
from glmspark.config.problems import FileError, check_file, read_file
from glmspark.config.recipe import Recipe
from glmspark.config.yamltree import Problem, YamlTree
from glmspark.errors import UsageError

__all__ = [
    "RecipeError",
    "check_recipe",
    "load_recipe",
    "parse_recipe",
    "read_recipe",
    "recipe_names",
    "recipe_path",
]

_SUFFIXES = (".yaml", ".yml")


class RecipeError(FileError):
    """A recipe that is missing or wrong; see FileError."""

    step_name = "read recipe"


def recipe_path(name_or_path: str | os.PathLike[str]) -> Path:
    """The file of a recipe. What holds a slash, ends in .yaml/.yml or is a Path is a file, else a name.

    Raises RecipeError for an unknown name, with the nearest one and all of them.
    """
    text = os.fspath(name_or_path)
    is_file = not isinstance(name_or_path, str) or "/" in text or text.endswith(_SUFFIXES)
    if is_file:
        try:
            return expand(text)
        except UsageError as error:
            reason = error.message.removeprefix(f"{text}: ")
            raise RecipeError(text, [Problem(None, reason, error.next)]) from None
    names = recipe_names()
    if text in names:
        return Path(str(files("glmspark.recipes") / f"{text}.yaml"))
    near = difflib.get_close_matches(text, names, n=1, cutoff=0.5)
    guess = f"did you mean {near[0]}? " if near else ""
    beside = next((f"./{text}{suffix}" for suffix in (*_SUFFIXES, "") if _is_file(text + suffix)), None)
    hint = f"{guess}recipes are {', '.join(names)}"
    if beside:
        hint += f"; for the file in this directory write {beside}"
    raise RecipeError(text or "''", [Problem(None, "no recipe of this name", hint)])


def load_recipe(name_or_path: str | os.PathLike[str]) -> Recipe:
    """Read and check a recipe. Raises RecipeError, and nothing else, for anything wrong with it."""
    path = recipe_path(name_or_path)
    return parse_recipe(_read(path), str(path))


def read_recipe(name_or_path: str | os.PathLike[str]) -> bytes:
    """The bytes of a recipe's file, unchecked. Raises RecipeError where there is no such file to read."""
    return _read(recipe_path(name_or_path))


def parse_recipe(raw: bytes, path: str) -> Recipe:
    """The recipe in a file's bytes; path is only for messages. Raises RecipeError with all problems."""
    recipe, problems = check_recipe(raw)
    if recipe is None or problems:
        raise RecipeError(path, problems)
    return recipe


def check_recipe(raw: bytes) -> tuple[Recipe | None, list[Problem]]:
    """The recipe in a file's bytes, if it can be built, and everything wrong with it in order of lines."""
    recipe, tree, problems = check_file(Recipe, raw, "a recipe")
    if recipe is not None:
        problems.extend(_too_long(recipe, tree))
    return recipe, sorted(problems, key=lambda problem: problem.line or 0)


def _too_long(recipe: Recipe, tree: YamlTree) -> Iterator[Problem]:
    """Canaries that the recipe's own context cannot hold: the engine would refuse them, not fail them."""
    context = recipe.engine.max_model_len
    for i, canary in enumerate(recipe.canaries):
        if isinstance(canary, RanksCanary):
            continue
        tokens = canary.max_tokens + (canary.tokens if isinstance(canary, LongPromptCanary) else 0)
        if tokens > context:
            yield Problem(
                tree.lines.get(("canaries", i)),
                f"canaries[{i}] takes {tokens} tokens, engine.max_model_len is {context}",
                "lower its tokens or max_tokens",
            )


def _read(path: Path) -> bytes:
    return read_file(path, RecipeError, "a recipe file", missing=lambda: _beside(path))


def _beside(path: Path) -> str:
    if path.stem in recipe_names():
        return f"for the recipe that comes with glmspark write {path.stem}"
    near = difflib.get_close_matches(path.name, list(_yaml_files(path.parent)), n=1, cutoff=0.5)
    return (
        f"did you mean {path.parent / near[0]}?" if near else "`glmspark recipe list` shows the built-in ones"
    )


def _yaml_files(directory: Path) -> Iterator[str]:
    try:
        for entry in directory.iterdir():
            if entry.name.endswith(_SUFFIXES) and entry.exists():
                yield entry.name
    except OSError:
        return


def _is_file(name: str) -> bool:
    try:
        return bool(name) and Path(name).is_file()
    except (OSError, ValueError):
        return False
