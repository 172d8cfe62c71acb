"""Facts about a node. Each is a command (an argv list) and a pure parser of what the command prints.

The parser never looks at the machine, so it is tested on recorded output; the command never depends on the
transport, so the same fact is read here and over SSH.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Fact(Generic[T]):
    """One thing to know about a node.

    name: what errors call it. command: the argv to run. parse: from the command's standard output to the
    value; raises ValueError where the text is not what the command should print. partial: exit codes other
    than 0 with which the output still counts (``find`` leaves with 1 when a process ends while it looks).
    """

    name: str
    command: tuple[str, ...]
    parse: Callable[[str], T]
    partial: tuple[int, ...] = ()
