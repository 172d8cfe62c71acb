"""A case to explain: logs and facts, wherever they come from, read within bounds."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import json
import os
import tarfile
import time
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from glmspark.errors import UsageError
from glmspark.launch import case_facts
from glmspark.launch.faults import FirstError
from glmspark.symptoms.catalogue import catalogue
from glmspark.symptoms.facts import Facts
from glmspark.symptoms.logfacts import LogFacts
from glmspark.symptoms.match import Finding, match, ruled_out
from glmspark.symptoms.scan import Scanner

__all__ = ["Case", "Limits", "Readable"]

_CHUNK = 1 << 20
_MOST_JSON = 4 << 20  # bytes of a JSON file that is understood
_MOST_FILES = 1000


class Readable(Protocol):
    """Something to read bytes from."""

    def read(self, size: int = ..., /) -> bytes:
        """At most so many bytes, none at the end."""


@dataclass(frozen=True)
class Limits:
    """How much is read: of one source its beginning and its end (bytes), and seconds for all of them."""

    head: int = 48 << 20
    tail: int = 48 << 20
    seconds: float = 30.0


class _Errors:
    """The first error of each source, for a case in which nothing known shows."""

    signs: tuple[bytes, ...] = (
        b"Traceback",
        b"ERROR",
        b"CRITICAL",
        b"Fatal Python error",
        b"glmspark.engine.serve: ",
    )

    def __init__(self) -> None:
        self.by_source: dict[str, FirstError] = {}

    def line(self, source: str, text: str) -> None:
        """Take a line of a source."""
        self.by_source.setdefault(source, FirstError()).feed(text)


@dataclass
class Case:
    """What is looked at. about: what it is, for people; notes: what could not be read, or not wholly; old:
    sources whose lines may be of long before."""

    about: str
    limits: Limits = field(default_factory=Limits)
    facts: Facts = field(default_factory=Facts)
    notes: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    old: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._known, self._errors = LogFacts(), _Errors()
        self._deadline = time.monotonic() + self.limits.seconds
        self.scanner = Scanner(catalogue(), deadline=self._deadline, observers=[self._known, self._errors])

    # -- what goes in --------------------------------------------------------------------------------------

    def text(self, text: str, source: str, *, old: bool = False) -> None:
        """A short text: the reason in a record, kernel lines. old: they may be of long before."""
        self.sources.append(source)
        if old:
            self.old.add(source)
        self.scanner.read([text.encode("utf-8", "replace")], source)

    def stream(self, stream: Readable, source: str) -> None:
        """A stream to its end, in bounded memory: its beginning, then what came last."""
        head = _decoded(stream)
        self.sources.append(source)
        self.scanner.read(self._head(head), source)
        if self.scanner.late:
            self._note_late()
            return
        kept: deque[bytes] = deque()
        size = passed = 0
        for chunk in head:
            if time.monotonic() > self._deadline:  # a small archive may hold more than a life takes to read
                self.scanner.late = True
                break
            kept.append(chunk)
            size += len(chunk)
            while size - len(kept[0]) > self.limits.tail:
                size -= len(kept[0])
                passed += len(kept.popleft())
        if passed:
            self.notes.append(f"{source}: {passed >> 20} MiB in its middle were not looked at")
        if kept:
            self.scanner.read(kept, f"{source} (end)" if passed else source)
        self._note_late()

    def _head(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        left = self.limits.head
        for chunk in chunks:
            yield chunk
            left -= len(chunk)
            if left <= 0:
                return

    def file(self, path: Path, source: str | None = None) -> None:
        """A file: a log as it is or compressed, a JSON file of ours, or an archive of such files."""
        name = source or path.name
        try:
            with path.open("rb") as file:
                start = file.read(512)
                file.seek(0)
                if start.startswith(b"\x1f\x8b"):
                    self._compressed(file, name)
                elif path.suffix == ".json" and path.stat().st_size <= _MOST_JSON:
                    self.json(file.read(), name)
                else:
                    self._plain(file, path.stat().st_size, name)
        except OSError as error:
            self.notes.append(f"{name}: {error.strerror or error}")

    def _plain(self, file: BinaryIO, size: int, name: str) -> None:
        """A file can be skipped in its middle without reading it."""
        if size <= self.limits.head + self.limits.tail:
            self.stream(file, name)
            return
        self.sources.append(name)
        self.scanner.read(self._head(_decoded(file)), name)
        file.seek(size - self.limits.tail)
        self.notes.append(f"{name}: {(size - self.limits.head - self.limits.tail) >> 20} MiB in its middle "
                          "were not looked at")  # fmt: skip
        self.scanner.read(_chunks(file), f"{name} (end)")
        self._note_late()

    def _compressed(self, file: BinaryIO, name: str) -> None:
        try:
            with tarfile.open(fileobj=file, mode="r|gz") as archive:
                self._archive(archive)
            return
        except tarfile.ReadError:
            file.seek(0)
        except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
            self.notes.append(f"{name}: {error}")
            return
        try:
            with gzip.open(file) as inner:
                self.stream(inner, name.removesuffix(".gz"))
        except (OSError, EOFError, zlib.error) as error:
            self.notes.append(f"{name}: {error}")

    def _archive(self, archive: tarfile.TarFile) -> None:
        for number, member in enumerate(archive):
            if number >= _MOST_FILES or self.scanner.late:
                self.notes.append("not all of the archive was looked at")
                return
            inner = archive.extractfile(member) if member.isreg() else None
            if inner is None:
                continue
            if member.name.endswith(".json") and member.size <= _MOST_JSON:
                self.json(inner.read(), member.name)
            else:
                self.stream(inner, member.name)

    def directory(self, path: Path) -> None:
        """All files of a directory: of evidence, of a deployment, an unpacked bundle. Links are not followed.

        Raises UsageError where there are none.
        """
        found: list[Path] = []
        for where, directories, files in os.walk(path):
            directories.sort()
            found += [Path(where, name) for name in sorted(files) if not Path(where, name).is_symlink()]
        found = [one for one in found if one.is_file()]  # no sockets, no pipes
        if not found:
            raise UsageError(f"{path} has no files", next="name a log, or a directory of logs")
        if len(found) > _MOST_FILES:
            self.notes.append(f"{len(found) - _MOST_FILES} more files were not looked at")
        for one in found[:_MOST_FILES]:
            self.file(one, str(one.relative_to(path)))

    def json(self, raw: bytes, source: str) -> None:
        """A JSON file: its facts if it is one of ours, and its text."""
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(raw)
            self.known(value, source)
            return
        self.scanner.read([raw], source)
        self.sources.append(source)

    def known(self, value: Any, source: str) -> None:
        """Data of ours: facts, and every text in it as lines."""
        self.facts.update(case_facts.of_json(value, source))
        if isinstance(value, dict) and isinstance(value.get("verdicts"), list) and "recipe" not in value:
            self.sources.append(source)
            return  # what checks say of lines in a kernel's log is no line of this case
        texts: list[str] = []
        _collect(value, texts)
        if texts:
            self.text("\n".join(texts), source)

    def _note_late(self) -> None:
        note = f"not all was looked at: {self.limits.seconds:g} s were over"
        if self.scanner.late and note not in self.notes:
            self.notes.append(note)

    # -- what comes out ------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """What shows, the surest first."""
        self.facts.update(self._known.facts)
        return match(self.scanner.hits, self.facts, old=self.old)

    def to_json(self) -> dict[str, Any]:
        """The whole case as JSON data."""
        findings = self.findings()
        first = self.first_error()
        return {
            "about": self.about,
            "sources": self.sources,
            "bytes": self.scanner.bytes,
            "notes": self.notes,
            "findings": [one.to_json() for one in findings],
            "ruled_out": [
                {"name": symptom.name, "because": why} for symptom, why in self.ruled_out()
            ],
            "first_error": None if first is None else {"source": first[0], "text": first[1]},
        }  # fmt: skip

    def ruled_out(self) -> list[tuple[Any, str]]:
        """Symptoms whose lines are there while a fact speaks against them."""
        return ruled_out(self.scanner.hits, self.facts)

    def first_error(self) -> tuple[str, str] | None:
        """Source and text of the first error of a log, for a case in which nothing shows."""
        for source, error in self._errors.by_source.items():
            if error.message is not None or error.said is not None:
                return source, error.report() or ""
        return None


def _chunks(stream: Readable) -> Iterator[bytes]:
    while chunk := stream.read(_CHUNK):
        yield chunk


def _decoded(stream: Readable) -> Iterator[bytes]:
    """A stream's chunks, UTF-16 (as some shells write logs) as UTF-8."""
    chunks = _chunks(stream)
    first = next(chunks, b"")
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        decoder = codecs.getincrementaldecoder("utf-16")("replace")
        yield decoder.decode(first).encode()
        for chunk in chunks:
            yield decoder.decode(chunk).encode()
        return
    if first:
        yield first
    yield from chunks


def _collect(value: object, texts: list[str], depth: int = 0) -> None:
    if depth > 12 or len(texts) > 20_000:
        return
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, dict):
        for key, one in value.items():
            if key not in ("recipe", "plan", "cluster"):  # settings, not what happened
                _collect(one, texts, depth + 1)
    elif isinstance(value, list):
        for one in value:
            _collect(one, texts, depth + 1)
