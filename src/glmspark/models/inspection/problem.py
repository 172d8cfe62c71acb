"""One thing that is wrong with a checkpoint, and what it means to the person who wants to run it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

__all__ = ["Problem", "Severity"]


class Severity(StrEnum):
    """ERROR: it will not load, or will answer wrongly. WARNING: it depends on the engine or on the use.
    NOTE: worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Problem:
    """rule: its name in JSON and in tests. seen: the evidence. effect: what will happen. remedy: the way
    out. where: files or tensors, as few as say which."""

    severity: Severity
    rule: str
    seen: str
    effect: str
    remedy: str
    where: str = ""

    def __post_init__(self) -> None:
        # A tensor's or a file's name may hold what a terminal obeys.
        for name in ("seen", "effect", "remedy", "where"):
            object.__setattr__(self, name, _printable(getattr(self, name)))

    def to_json(self) -> dict[str, Any]:
        """The problem as JSON data."""
        return asdict(self)


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def some(names: list[str], shown: int = 3) -> str:
    """The first few names, and how many more there are."""
    short = [name if len(name) <= 120 else name[:117] + "..." for name in names[:shown]]
    return ", ".join(short) + (f" and {len(names) - shown} more" if len(names) > shown else "")
