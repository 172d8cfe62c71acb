"""The canaries of a recipe: requests whose right answer is known, one class per kind of probe.

`expect` is a regular expression that must be found in the answer's text (`re.search`), so that "4",
"4." and " four" can all be right.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

__all__ = [
    "AnswerCanary",
    "Canary",
    "ConcurrentCanary",
    "Exchange",
    "LongAnswerCanary",
    "LongPromptCanary",
    "RanksCanary",
    "ReasoningCanary",
    "StreamingCanary",
    "Text",
    "Tool",
    "ToolCallCanary",
    "at_least",
    "shipped_canaries",
]


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return pattern


def at_least(count: int) -> AfterValidator:
    """A list of at least so many items. (pydantic's own min_length also complains about a list whose items
    are wrong, which hides the real fault.)"""

    def check(items: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(items) < count:
            raise ValueError(f"expected at least {count} item{'s' if count > 1 else ''}, got {len(items)}")
        return items

    return AfterValidator(check)


Text = Annotated[str, Field(min_length=1, max_length=100_000)]
Pattern = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_compiles)]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]


class Section(BaseModel):
    """Base of every section of a recipe: unknown keys refused, no silent conversions, not changeable."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", validate_default=True)


class Exchange(Section):
    """One prompt and what its answer must contain."""

    prompt: Text
    expect: Pattern


class Tool(Section):
    """A function offered to the model. parameters: its JSON schema, given on as it is."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str = ""
    parameters: dict[str, Any]


class _Probe(Section):
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """How reports call this canary; the probe's kind if it has none."""
    max_tokens: Tokens = 64
    thinking: bool = False
    """Whether the chat template opens a reasoning block (`enable_thinking`)."""
    timeout_s: Annotated[int, Field(ge=1, le=3600)] = 120
    causes: tuple[Text, ...] = ()
    """Likely causes of a failure beyond those the probe itself names."""


class AnswerCanary(_Probe):
    """One greedy answer with the right text."""

    probe: Literal["answer"]
    prompt: Text
    expect: Pattern


class ConcurrentCanary(_Probe):
    """All cases at once, each `times` times; every answer must be its own right one."""

    probe: Literal["concurrent"]
    cases: Annotated[tuple[Exchange, ...], at_least(1)]
    times: Annotated[int, Field(ge=1, le=64)] = 1


class LongPromptCanary(_Probe):
    """A needle in text of about `tokens` tokens.

    The prompt is `before`, then `filler` repeated up to that length with `needle` at `depth` (0 = first,
    1 = last), then `question`.
    """

    probe: Literal["long_prompt"]
    tokens: Tokens
    before: str = ""
    filler: Text
    needle: Text
    depth: Annotated[float, Field(ge=0, le=1)] = 0.5
    question: Text
    expect: Pattern


class LongAnswerCanary(_Probe):
    """An answer of at least `min_tokens` tokens that is right to its end."""

    probe: Literal["long_answer"]
    prompt: Text
    expect: Pattern
    min_tokens: Tokens = 1
    max_tokens: Tokens = 512


class StreamingCanary(_Probe):
    """The same request streamed and not streamed gives the same right text."""

    probe: Literal["streaming"]
    prompt: Text
    expect: Pattern


class ReasoningCanary(_Probe):
    """Reasoning arrives in its own field and the answer in content, without `<think>` in either."""

    probe: Literal["reasoning"]
    prompt: Text
    expect: Pattern
    expect_reasoning: Pattern = r"\S"
    max_tokens: Tokens = 256
    thinking: bool = True


class ToolCallCanary(_Probe):
    """One parsed call of `tool` with exactly these arguments."""

    probe: Literal["tool_call"]
    prompt: Text
    tool: Tool
    arguments: dict[str, Any]
    max_tokens: Tokens = 128


class RanksCanary(Section):
    """Every rank and its worker alive."""

    probe: Literal["ranks"]
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    causes: tuple[Text, ...] = ()


Canary = Annotated[
    AnswerCanary
    | ConcurrentCanary
    | LongPromptCanary
    | LongAnswerCanary
    | StreamingCanary
    | ReasoningCanary
    | ToolCallCanary
    | RanksCanary,
    Field(discriminator="probe"),
]


def shipped_canaries(value: object) -> object:
    """The list behind the name of one that comes with glmspark; anything else as it is.

    Raises ValueError for an unknown name, with all of them.
    """
    if not isinstance(value, str):
        return _as_read(value)
    place = files("glmspark.recipes") / "canaries"
    known = sorted(
        entry.name.removesuffix(".yaml") for entry in place.iterdir() if entry.name.endswith(".yaml")
    )
    if value not in known:
        raise ValueError(
            f"{value!r} is no list of canaries that comes with glmspark; those are {', '.join(known)}"
        )
    from glmspark.config.yamltree import read_yaml  # here, as who reads a record reads no YAML

    return read_yaml((place / f"{value}.yaml").read_bytes()).data


def _as_read(value: object) -> object:
    """Lists as tuples, which is how YAML is read here: records are JSON, and what a validator before others
    hands on is checked as strictly as Python's own values."""
    if isinstance(value, list | tuple):
        return tuple(_as_read(one) for one in value)
    if isinstance(value, dict):
        return {key: _as_read(one) for key, one in value.items()}
    return value
