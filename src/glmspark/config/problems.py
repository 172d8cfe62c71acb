"""A file that people wrote and what is wrong with it: all of it at once, each fault with its line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from glmspark.config.explain import explain
from glmspark.config.files import advice
from glmspark.config.yamltree import MAX_BYTES, Problem, YamlTree, read_yaml
from glmspark.errors import GlmsparkError

__all__ = ["FileError", "check_file", "describe", "read_file"]

Model = TypeVar("Model", bound=BaseModel)


class FileError(GlmsparkError):
    """A file that is missing or wrong.

    path: the file, or the name asked for. line: counted from 1, None where none can be named. hint: what to
    do. problems: all that is wrong with the file, the first one being this error's.
    """

    step_name = "read the file"
    """What errors say was being done."""

    def __init__(self, path: str, problems: list[Problem]) -> None:
        first, rest = problems[0], problems[1:]
        self.path = path
        self.line = first.line
        self.hint = first.hint
        self.problems = tuple(problems)
        lines = [describe(path, one) + (f" ({one.hint})" if one.hint else "") for one in rest]
        super().__init__(
            describe(path, first), step=self.step_name, seen="\n".join(lines) or None, next=first.hint
        )

    def to_json(self) -> dict[str, Any]:
        """The error's data, with the file and every problem in it."""
        problems = [{"line": one.line, "message": one.message, "hint": one.hint} for one in self.problems]
        return super().to_json() | {"path": self.path, "line": self.line, "problems": problems}


def read_file(path: Path, error: type[FileError], noun: str, *, missing: Callable[[], str]) -> bytes:
    """The bytes of a file that people wrote, and one more than one may have where it has too many.

    noun: what such a file is called, such as "a recipe". missing: says what to do where there is none. Raises
    `error`, with what to do, also for what would never end or never come: a device, a pipe.
    """
    shown = str(path)
    try:
        if path.is_dir():
            raise error(shown, [Problem(None, f"this is a directory, not {noun}", "name the file in it")])
        if not path.is_file():
            if path.exists():
                following = f"write {noun} into a file, and name that"
                raise error(shown, [Problem(None, "this is not a regular file", following)])
            raise error(shown, [Problem(None, "no such file", missing())])
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as failed:
        following = advice(failed, path) or "is the name spelled right?"
        problem = Problem(None, f"cannot be read: {failed.strerror or failed}", following)
    except ValueError as failed:
        problem = Problem(None, f"cannot be read: {failed}", "is the name spelled right?")
    raise error(shown, [problem])


def describe(path: str, problem: Problem) -> str:
    """A problem in the compiler's way: path:line: message."""
    return f"{path if problem.line is None else f'{path}:{problem.line}'}: {problem.message}"


def check_file(model: type[Model], raw: bytes, noun: str) -> tuple[Model | None, YamlTree, list[Problem]]:
    """What a file's bytes hold as a model, if it can be built; the tree with its lines; all that is wrong.

    noun: what such a file is called, such as "a recipe". Problems come in no particular order.
    """
    tree = read_yaml(raw)
    problems = list(tree.problems)
    if tree.data is None and problems:
        return None, tree, problems
    if not isinstance(tree.data, dict):
        kind = "a list" if isinstance(tree.data, tuple) else "a single value"
        problems.append(Problem(tree.lines.get(()), f"{noun} is a mapping of keys, this is {kind}"))
        return None, tree, problems
    try:
        return model.model_validate(tree.data), tree, problems
    except ValidationError as error:
        return None, tree, problems + explain(model, tree, error)
