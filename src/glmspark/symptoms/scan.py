"""Reading logs for the catalogue's lines: streamed, within a bounded time and memory, whatever the bytes are.

A log is taken in blocks of whole lines. Which patterns may fit is asked of a block first, by the text that
each must contain; most blocks of most logs contain none and are counted only.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from glmspark.symptoms.catalogue import Symptom
from glmspark.symptoms.patterns import LONGEST_LINE, Pattern

__all__ = ["Hit", "Observer", "Scanner"]

_LONGEST = 64 * 1024  # bytes; a longer line is taken in pieces
_MOST_SHOWN = 300  # characters of a line kept as evidence
_MOST_HITS = 3  # lines kept for one symptom and source
_ESCAPES = re.compile(rb"\x1b\[[0-9;?]{0,20}[A-Za-z]")


class Observer(Protocol):
    """Someone else who reads along. signs: without any of them in a block there is nothing for it."""

    signs: tuple[bytes, ...]

    def line(self, source: str, text: str) -> None:
        """Take a line of a source."""


@dataclass
class Hit:
    """Lines of one source that show a symptom. first: the line's number, from 1. times: how often; lines: the
    first few."""

    symptom: str
    source: str
    first: int
    lines: list[str] = field(default_factory=list)
    times: int = 0


class Scanner:
    """Finds symptoms in lines. One for all sources of a case.

    deadline: monotonic seconds after which nothing more is read; `late` says that this has happened.
    """

    def __init__(
        self,
        symptoms: Sequence[Symptom],
        *,
        deadline: float | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.late = False
        self.bytes = 0
        self._hits: dict[tuple[str, str], Hit] = {}
        self._deadline = deadline
        self._observers = observers
        self._rows: list[_Row] = [
            (pattern.literal.encode(), pattern, symptom.name)
            for symptom in symptoms
            for pattern in symptom.lines
        ]

    @property
    def hits(self) -> list[Hit]:
        """What was found."""
        return list(self._hits.values())

    def read(self, chunks: Iterable[bytes], source: str) -> None:
        """Read a source's bytes as they come. source: how people call it."""
        number = 1
        for block in _blocks(chunks):
            self.bytes += len(block)
            self._block(block, source, number)
            number += block.count(b"\n")
            if self._deadline is not None and time.monotonic() > self._deadline:
                self.late = True
                return

    def _block(self, block: bytes, source: str, number: int) -> None:
        if b"\x1b" in block:
            block = _ESCAPES.sub(b"", block)
        rows = [row for row in self._rows if row[0] in block]
        readers = [one for one in self._observers if any(sign in block for sign in one.signs)]
        if not rows and not readers:
            return
        for offset, raw in enumerate(block.split(b"\n")):
            text: str | None = None
            for reader in readers:
                text = raw.decode("utf-8", "replace") if text is None else text
                reader.line(source, text)
            found: set[str] = set()
            for literal, pattern, name in rows:
                if literal in raw and name not in found:
                    text = raw.decode("utf-8", "replace") if text is None else text
                    if pattern.search(text):
                        found.add(name)
                        self._note(name, source, number + offset, text)

    def _note(self, name: str, source: str, number: int, text: str) -> None:
        hit = self._hits.setdefault((name, source), Hit(name, source, number))
        hit.times += 1
        if len(hit.lines) < _MOST_HITS:
            shown = "".join(char if char.isprintable() else "�" for char in text.strip()[:_MOST_SHOWN])
            if shown not in hit.lines:
                hit.lines.append(shown)


_Row = tuple[bytes, Pattern, str]


def _blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines of each chunk, the last without its end. A carriage return ends a line too (progress bars).

    A line that does not end is given in pieces that overlap, so that nothing falls between two.
    """
    rest = b""
    for chunk in chunks:
        data = (rest + chunk).replace(b"\r\n", b"\n")
        data, rest = (data[:-1], b"\r") if data.endswith(b"\r") else (data, b"")
        block, found, last = data.replace(b"\r", b"\n").rpartition(b"\n")
        rest = last + rest
        if found:
            yield block + b"\n"
        while len(rest) > _LONGEST:
            yield rest[:_LONGEST]
            rest = rest[_LONGEST - LONGEST_LINE :]
    if rest:
        yield rest
