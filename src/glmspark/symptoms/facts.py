"""What is known beside the logs: of the nodes, the deployment, its guard, and what logs state in figures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

__all__ = ["Condition", "Facts", "Known", "Value"]

Value = str | int | float | bool

_VERSION = re.compile(r"\d+(?:\.\d+)*")


@dataclass(frozen=True)
class Known:
    """One fact. where: the node or file it is from, '' where that goes without saying."""

    name: str
    value: Value
    where: str = ""

    def __str__(self) -> str:
        text = f"{self.name}: {self.value}"
        return f"{self.where}: {text}" if self.where else text


@dataclass
class Facts:
    """Facts by name; one name may have several values, of several nodes or of one list."""

    known: dict[str, list[Known]] = field(default_factory=dict)

    def add(self, name: str, value: Any, where: str = "") -> None:
        """Add a fact; of a list each item, of what is not plain (None, mappings) nothing."""
        if isinstance(value, list | tuple):
            for one in value:
                self.add(name, one, where)
        elif isinstance(value, Value):
            fact = Known(name, value, where)
            if fact not in self.known.setdefault(name, []):
                self.known[name].append(fact)

    def update(self, other: Facts) -> None:
        """Add all of another's."""
        for facts in other.known.values():
            for fact in facts:
                self.add(fact.name, fact.value, fact.where)

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str = "") -> Self:
        """Facts from a mapping."""
        facts = cls()
        for name, value in values.items():
            facts.add(name, value, where)
        return facts

    def __iter__(self) -> Iterator[Known]:
        for facts in self.known.values():
            yield from facts


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return pattern


class Condition(BaseModel):
    """One thing a fact may be. Exactly one of the tests is given; `is` takes one value or several.

    fact: its name, as docs/troubleshooting.md lists them. older: a version below this one. matches: found in
    the fact's text.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", populate_by_name=True)

    fact: Annotated[str, Field(min_length=1, max_length=80)]
    is_: Annotated[Value | tuple[Value, ...] | None, Field(alias="is")] = None
    matches: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_compiles)] | None = None
    at_least: float | int | None = None
    at_most: float | int | None = None
    older: Annotated[str, Field(pattern=r"^\d+(\.\d+)*$")] | None = None

    @model_validator(mode="after")
    def _one_test(self) -> Self:
        given = [self.is_, self.matches, self.at_least, self.at_most, self.older]
        if sum(one is not None for one in given) != 1:
            raise ValueError("give exactly one of is, matches, at_least, at_most, older")
        return self

    def found(self, facts: Facts) -> Known | None:
        """The first fact that is so, None where none is or nothing is known of it."""
        return next((one for one in facts.known.get(self.fact, ()) if self._holds(one.value)), None)

    def _holds(self, value: Value) -> bool:
        if self.is_ is not None:
            wanted = self.is_ if isinstance(self.is_, tuple) else (self.is_,)
            return any(type(value) is type(one) and value == one for one in wanted)
        if self.matches is not None:
            return re.search(self.matches, str(value)[:2000]) is not None
        if self.older is not None:
            version = _VERSION.search(str(value))
            return version is not None and _numbers(version[0]) < _numbers(self.older)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return value >= self.at_least if self.at_least is not None else value <= (self.at_most or 0)

    def __str__(self) -> str:
        if self.is_ is not None:
            wanted = self.is_ if isinstance(self.is_, tuple) else (self.is_,)
            return f"{self.fact} is {' or '.join(_shown(one) for one in wanted)}"
        if self.matches is not None:
            return f"{self.fact} matches `{self.matches}`"
        if self.older is not None:
            return f"{self.fact} is older than {self.older}"
        if self.at_least is not None:
            return f"{self.fact} is {self.at_least:g} or more"
        return f"{self.fact} is {self.at_most:g} or less"


def _shown(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
