"""The catalogue: how things go wrong, by what shows it, with cause and remedy. One place for all of glmspark.

`*.yaml` beside this file. `explain` looks logs and facts up in it, a start that fails names its symptom, and
canaries take their likely causes from it. docs/troubleshooting.md is made from it.
"""

from __future__ import annotations

import functools
from enum import StrEnum
from importlib.resources import files
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from glmspark.config.yamltree import read_yaml
from glmspark.plan.known_bad import RULES
from glmspark.symptoms.facts import Condition
from glmspark.symptoms.patterns import Pattern, PatternError

__all__ = ["CatalogueError", "Severity", "Symptom", "catalogue", "named", "parse_catalogue"]


class CatalogueError(ValueError):
    """A file of the catalogue is not one."""


class Severity(StrEnum):
    """What a symptom does to a deployment, the worst first."""

    NODE = "node"  # a machine is lost, or about to be
    FATAL = "fatal"  # it does not start, or ends
    WRONG = "wrong"  # it answers, and wrongly
    STALL = "stall"  # it neither answers nor ends
    SLOW = "slow"  # it works, at a fraction of the speed
    FOLLOWS = "follows"  # only says that something else has failed: never the cause


def _severity(value: object) -> object:
    return Severity(value) if isinstance(value, str) and value in set(Severity) else value


def _pattern(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return Pattern.parse(value)
    except PatternError as error:
        raise ValueError(f"{value!r}: {error}") from None


Text = Annotated[str, Field(min_length=1, max_length=2000)]
Line = Annotated[Pattern, BeforeValidator(_pattern)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]


class Symptom(BaseModel):
    """One way in which things go wrong.

    lines: any of them in a log shows it. when: facts that show it by themselves, all together. confirms:
    facts that make it surer, each; rules_out: facts with which it is something else. sure: how sure one line
    (or `when`) makes it, 0 to 1. covers: symptoms that follow from this one. canaries: kinds of canary that
    fail of it; brief: the cause in their verdicts' words. rule: of plan.known_bad, which refuses it
    beforehand and says the remedy.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", arbitrary_types_allowed=True)

    name: Name
    title: Annotated[str, Field(min_length=1, max_length=120)]
    severity: Annotated[Severity, BeforeValidator(_severity)]
    lines: tuple[Line, ...] = ()
    when: tuple[Condition, ...] = ()
    confirms: tuple[Condition, ...] = ()
    rules_out: tuple[Condition, ...] = ()
    sure: Annotated[float, Field(gt=0, lt=1)] = 0.7
    covers: tuple[Name, ...] = ()
    canaries: tuple[str, ...] = ()
    brief: Annotated[str, Field(min_length=1, max_length=160)] | None = None
    cause: Text
    remedy: Text
    sources: Annotated[tuple[Text, ...], Field(min_length=1)]
    rule: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_rule(cls, value: Any) -> Any:
        """What the rule says is not written twice."""
        if not isinstance(value, dict) or "rule" not in value:
            return value
        rule = next((one for one in RULES if one.name == value["rule"]), None)
        if rule is None:
            raise ValueError(f"there is no rule {value['rule']!r} in plan.known_bad")
        sources = (*value.get("sources", ()), rule.source)
        return {"name": rule.name, "remedy": _sentence(rule.next), **value, "sources": sources}

    @model_validator(mode="after")
    def _shows_somehow(self) -> Self:
        if not self.lines and not self.when:
            raise ValueError("give lines or when: nothing would show it")
        if bool(self.canaries) != (self.brief is not None):
            raise ValueError("brief is the cause as a verdict of the canaries named says it: give both")
        return self


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith(".") else ".")


def parse_catalogue(raw: bytes, where: str) -> tuple[Symptom, ...]:
    """The symptoms of one file. Raises CatalogueError with the file, the line and what is wrong."""
    tree = read_yaml(raw)
    if tree.problems or not isinstance(tree.data, tuple):
        problem = tree.problems[0] if tree.problems else None
        line = f", line {problem.line}" if problem and problem.line else ""
        raise CatalogueError(
            f"{where}{line}: {problem.message if problem else 'it is not a list of symptoms'}"
        )
    found = []
    for number, entry in enumerate(tree.data):
        try:
            found.append(Symptom.model_validate(entry))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            line = f", line {tree.lines.get((number,), '?')}"
            raise CatalogueError(f"{where}{line}: {place}: {first['msg']}") from None
    return tuple(found)


@functools.cache
def catalogue() -> tuple[Symptom, ...]:
    """All symptoms, file by file and in their order there. Raises CatalogueError."""
    found: list[Symptom] = []
    place = files("glmspark.symptoms")
    for entry in sorted(place.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".yaml"):
            found += parse_catalogue(entry.read_bytes(), entry.name)
    names = [one.name for one in found]
    for symptom in found:
        if names.count(symptom.name) > 1:
            raise CatalogueError(f"the symptom {symptom.name} is there twice")
        for other in symptom.covers:
            if other not in names:
                raise CatalogueError(f"{symptom.name} covers {other}, which is not there")
    return tuple(found)


def named(name: str) -> Symptom:
    """The symptom of that name. Raises KeyError."""
    found = next((one for one in catalogue() if one.name == name), None)
    if found is None:
        raise KeyError(name)
    return found
