"""pydantic's findings as sentences with lines, nearest keys and the section a key belongs to."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from glmspark.config.yamltree import Loc, Problem, YamlTree

__all__ = ["explain"]

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "a mapping of keys",
    "model_type": "a mapping of keys",
    "model_attributes_type": "a mapping of keys",
    "tuple_type": "a list",
}


def explain(model: type[BaseModel], tree: YamlTree, error: ValidationError) -> list[Problem]:
    """One Problem for each of pydantic's findings about a file of this model.

    A missing key whose misspelling stands beside it is one fault, not two.
    """
    problems: list[Problem] = []
    missing: list[tuple[Loc, Problem]] = []
    misspelt: set[Loc] = set()
    for detail in error.errors(include_url=False):
        path, classes = _walk(model, tree.data, detail["loc"])
        problem = Problem(_line(tree, path), *_sentence(detail, path, classes, model))
        if detail["type"] == "missing":
            missing.append((path, problem))
            continue
        if detail["type"] == "extra_forbidden" and problem.hint:
            meant = re.fullmatch(r"did you mean '(.+)'\?", problem.hint)
            if meant:
                misspelt.add((*path[:-1], meant[1]))
        problems.append(problem)
    return problems + [problem for path, problem in missing if path not in misspelt]


def _walk(model: type[BaseModel], data: Any, loc: Loc) -> tuple[Loc, list[type[BaseModel]]]:
    """The place in the file of a pydantic location, and the classes that describe it.

    pydantic adds the tag of a union to the location (canaries, 0, answer, prompt); it is no key of the file.
    """
    path: list[str | int] = []
    classes = [model]
    for part in loc:
        tagged = [cls for cls in classes if part in _tags(cls)]
        if tagged and not (isinstance(data, dict) and part in data):
            classes = tagged
            continue
        path.append(part)
        if isinstance(part, int):
            data = data[part] if isinstance(data, tuple) and part < len(data) else None
            continue
        data = data.get(part) if isinstance(data, dict) else None
        classes = [
            found
            for cls in classes
            if part in cls.model_fields
            for found in _models(cls.model_fields[part].annotation)
        ]
    return tuple(path), classes


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Every model class named in an annotation such as tuple[Annotated[A | B, ...], ...]."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _tags(cls: type[BaseModel]) -> tuple[Any, ...]:
    field = cls.model_fields.get("probe")
    return get_args(field.annotation) if field else ()


def _line(tree: YamlTree, path: Loc) -> int | None:
    for length in range(len(path), -1, -1):
        if path[:length] in tree.lines:
            return tree.lines[path[:length]]
    return None


def _sentence(
    detail: ErrorDetails, path: Loc, classes: list[type[BaseModel]], model: type[BaseModel]
) -> tuple[str, str | None]:
    kind, context = detail["type"], detail.get("ctx", {})
    name = _dotted(path)
    given = detail.get("input")
    if kind == "extra_forbidden":
        return _unknown_key(detail, path, model)
    if kind == "missing":
        parent = _dotted(path[:-1])
        return f"key {path[-1]!r} is missing" + (f" under {parent}" if parent else ""), None
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        tags = [tag for cls in classes for tag in _tags(cls)]
        if kind == "union_tag_not_found":
            return f"key 'probe' is missing under {name}", f"probes are {', '.join(tags)}"
        tag = str(context.get("tag"))
        return f"{name}: unknown probe {tag!r}", _nearest(tag, tags, "probes")
    if kind == "literal_error" and path == ("recipe",):
        return f"recipe: format {_short(given)} is not known", "this version of glmspark reads recipe: 1"
    if kind == "literal_error":
        choices = str(context.get("expected", "")).replace("'", "").replace(" or ", ", ").split(", ")
        return f"{name}: {_short(given)} is not accepted", _nearest(str(given), choices, "values")
    if kind in _EXPECTED:
        return f"{name}: expected {_EXPECTED[kind]}, got {_short(given)}", None
    if kind in ("value_error", "assertion_error"):
        return (f"{name}: " if name else "") + str(context.get("error", detail["msg"])), None
    if kind == "string_pattern_mismatch":
        return f"{name}: {_short(given)} does not match {context.get('pattern')}", None
    message = detail["msg"]
    return f"{name}: {message[0].lower()}{message[1:]}, got {_short(given)}", None


def _unknown_key(detail: ErrorDetails, path: Loc, model: type[BaseModel]) -> tuple[str, str | None]:
    key = str(path[-1])
    # The last part of the location is the key; what comes before it says which class refused it.
    owners = _owners(model, detail["loc"][:-1])
    keys = sorted({field for cls in owners for field in cls.model_fields})
    parent = _dotted(path[:-1])
    message = f"unknown key {key!r}" + (f" under {parent}" if parent else "")
    near = difflib.get_close_matches(key, keys, n=1, cutoff=0.6)
    if near:
        return message, f"did you mean {near[0]!r}?"
    home = _home(key, model)
    if home is not None and home != parent:
        return message, f"{key!r} belongs under {home}" if home else f"{key!r} belongs at the top level"
    if parent == "engine":
        return message, f"keys are {', '.join(keys)}; any other vLLM argument goes under engine.args"
    return message, f"keys are {', '.join(keys)}"


def _owners(model: type[BaseModel], loc: Loc) -> list[type[BaseModel]]:
    classes = [model]
    for part in loc:
        if isinstance(part, int):
            continue
        tagged = [cls for cls in classes if part in _tags(cls)]
        classes = tagged or [
            found
            for cls in classes
            if part in cls.model_fields
            for found in _models(cls.model_fields[part].annotation)
        ]
    return classes


def _home(key: str, model: type[BaseModel]) -> str | None:
    """The section that has this key: "" for the top level, None if no section has it."""
    if key in model.model_fields:
        return ""
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if (
            isinstance(annotation, type)
            and issubclass(annotation, BaseModel)
            and key in annotation.model_fields
        ):
            return name
    return None


def _nearest(given: str, choices: list[str], noun: str) -> str:
    near = difflib.get_close_matches(given, choices, n=1, cutoff=0.6)
    guess = f"did you mean {near[0]!r}? " if near else ""
    return f"{guess}{noun} are {', '.join(choices)}"


def _dotted(path: Loc) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _short(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, tuple | list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
