"""Prompts of a kind and a length, no two alike."""

from __future__ import annotations

import random
import string
from functools import cache
from importlib.resources import files
from typing import Any

KINDS = ("prose", "code", "structured", "reasoning", "languages")


@cache
def _data() -> dict[str, Any]:
    from ruamel.yaml import YAML

    data: dict[str, Any] = YAML(typ="safe").load((files(__package__) / "kinds.yaml").read_text("utf-8"))
    return data


def _filled(pattern: str, chance: random.Random) -> str:
    """The pattern with each {word} drawn anew."""
    words: dict[str, list[str]] = _data()["words"]
    parts = []
    for literal, name, _, _ in string.Formatter().parse(pattern):
        parts.append(literal)
        if name is not None:
            parts.append(chance.choice(words[name]))
    return "".join(parts)


def prompt(kind: str, seed: str, characters: int = 0) -> str:
    """A question of a kind, with at least so many characters of the same kind before it.

    The same kind, seed and length give the same prompt; other seeds differ from the first words on.
    Raises KeyError for a kind that is not in KINDS.
    """
    chosen = _data()["kinds"][kind]
    chance = random.Random(f"{kind} {seed}")  # noqa: S311 - text, not secrets
    ask = _filled(chance.choice(chosen["asks"]), chance)
    mark = f"Note {chance.randrange(16**8):08x}."
    parts, length = [mark], len(mark)
    while length < characters:
        sentence = _filled(chance.choice(chosen["filler"]), chance)
        parts.append(sentence)
        length += len(sentence) + 1
    separator = " " if len(parts) == 1 else "\n\n"
    return "\n".join(parts) + separator + ask
