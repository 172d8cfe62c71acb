"""Values out of a config.json that may say anything: each checked, each error naming its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glmspark.models.errors import CheckpointError

__all__ = ["ConfigValues"]

_LARGEST = 2**31 - 1


class ConfigValues:
    """Typed access to config.json. `where` is the file's name in errors."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where

    def bad(self, key: str, reason: str) -> CheckpointError:
        """The error for a key that cannot be used."""
        return CheckpointError(
            f"{self.where}: {key} {reason}",
            step="read config.json",
            next="fetch the checkpoint's config.json again; if it came so, the checkpoint is broken",
        )

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.config.get(key) is not None

    def integer(self, key: str, *, least: int = 1, most: int = _LARGEST, default: int | None = None) -> int:
        """A whole number between least and most; `default` where the key is absent or null."""
        value = self.config.get(key)
        if value is None:
            if default is not None:
                return default
            raise self.bad(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.bad(key, f"is {_short(value)}, expected a whole number")
        if not least <= value <= most:
            raise self.bad(key, f"is {_short(value)}, expected {least} to {most}")
        return value

    def number(self, key: str, *, default: float | None = None) -> float:
        """A number above zero; `default` where the key is absent or null."""
        value = self.config.get(key)
        if value is None:
            if default is not None:
                return default
            raise self.bad(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.bad(key, f"is {_short(value)}, expected a number above 0")
        return float(value)

    def one_of(self, key: str, names: Sequence[str]) -> str | None:
        """One of these words, or None where the key is absent or null."""
        value = self.config.get(key)
        if value is not None and value not in names:
            raise self.bad(key, f"is {_short(value)}, expected {' or '.join(names)}")
        return None if value is None else str(value)

    def tokens(self, key: str, vocabulary: int) -> None:
        """A token's number or a list of them, below the vocabulary's size; absent or null is fine."""
        value = self.config.get(key)
        for one in value if isinstance(value, list) else [value] if value is not None else []:
            if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < vocabulary:
                raise self.bad(key, f"names {_short(one)}, and tokens are 0 to {vocabulary - 1}")

    def flag(self, key: str, *, default: bool) -> bool:
        """true or false."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.bad(key, f"is {_short(value)}, expected true or false")
        return value

    def text(self, key: str) -> str | None:
        """Text, or None where the key is absent or null."""
        value = self.config.get(key)
        if value is not None and not isinstance(value, str):
            raise self.bad(key, f"is {_short(value)}, expected text")
        return value

    def choices(self, key: str, names: Mapping[str, str], count: int) -> tuple[str, ...] | None:
        """A list (or a string, one letter each) of `count` names, mapped through `names`."""
        value = self.config.get(key)
        if value is None:
            return None
        if not isinstance(value, str | list):
            raise self.bad(key, f"is {_short(value)}, expected a list")
        if len(value) != count:
            raise self.bad(key, f"has {len(value)} entries for {count} layers")
        unknown = [item for item in value if not isinstance(item, str) or item not in names]
        if unknown:
            raise self.bad(key, f"has the entry {_short(unknown[0])}, expected {' or '.join(names)}")
        return tuple(names[item] for item in value)


def _short(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**30:
        return "a number beyond 10^30"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
