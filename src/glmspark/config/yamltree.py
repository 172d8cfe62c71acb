"""YAML text to plain data plus the line of every key, for files that people write.

Only data is accepted: one document, mappings with text keys, lists and plain scalars of the YAML 1.2 core
schema. Anchors, aliases and tags are refused, so a small file can neither grow when it is read nor name
Python objects. Building from parser events keeps depth and size bounded before anything is built.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

__all__ = ["MAX_BYTES", "Loc", "Problem", "YamlTree", "read_yaml"]

MAX_BYTES = 128 * 1024
MAX_DEPTH = 32

Loc = tuple[str | int, ...]

_INT = re.compile(r"[-+]?[0-9]{1,40}|0o[0-7]{1,40}|0x[0-9a-fA-F]{1,40}", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,4})?", re.ASCII)


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a file. line counts from 1; None where no line can be named."""

    line: int | None
    message: str
    hint: str | None = None


@dataclass
class YamlTree:
    """data: the document (lists as tuples). lines: location -> line of its key or list item."""

    data: Any = None
    lines: dict[Loc, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


class _RefusedError(Exception):
    def __init__(self, line: int | None, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.problem = Problem(line, message, hint)


def read_yaml(raw: bytes) -> YamlTree:
    """Parse a whole file. Whatever the bytes are, the result has either data or problems (or both, when
    the only fault is a repeated key). It is the caller's own, also where the same bytes were read before."""
    known = _parsed(raw)
    return YamlTree(copy.deepcopy(known.data), dict(known.lines), list(known.problems))


@functools.lru_cache(maxsize=128)
def _parsed(raw: bytes) -> YamlTree:
    """The tree of these bytes: every recipe names the same few sets of canaries, and all are listed."""
    tree = YamlTree()
    try:
        text = _decode(raw)
        _build(text, tree)
    except _RefusedError as refused:
        tree.data = None
        tree.problems.append(refused.problem)
    return tree


def _decode(raw: bytes) -> str:
    if len(raw) > MAX_BYTES:
        raise _RefusedError(
            None, f"the file is larger than {MAX_BYTES // 1024} KiB", "is this the right file?"
        )
    if b"\0" in raw:
        raise _RefusedError(None, "the file is binary, not YAML text", "is this the right file?")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _RefusedError(line, f"the file is not UTF-8 text (byte {error.start})") from None
    if not text.strip():
        raise _RefusedError(None, "the file is empty")
    return text


def _build(text: str, tree: YamlTree) -> None:
    builder = _Builder(tree)
    for event in _events(text):
        builder.take(event)
    if not builder.documents:
        raise _RefusedError(None, "the file holds no data, only comments")


def _events(text: str) -> Iterator[Any]:
    """ruamel's parser events; whatever the parser raises becomes a refusal with its line."""
    events = iter(YAML(typ="safe", pure=True).parse(text))
    while True:
        try:
            event = next(events)
        except StopIteration:
            return
        except MarkedYAMLError as error:
            line = _fault_line(error)
            raise _RefusedError(line, *_syntax_message(error, text, line)) from None
        except Exception as error:  # noqa: BLE001
            # ReaderError (a character YAML does not allow) has a position and no mark; an escape beyond
            # Unicode comes through as chr()'s own ValueError or OverflowError. The contract of this module
            # is one refusal for any bytes, so nothing the parser raises may pass.
            position = getattr(error, "position", None)
            line = text.count("\n", 0, position) + 1 if isinstance(position, int) else None
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise _RefusedError(line, f"not valid YAML: {reason}") from None
        yield event


def _fault_line(error: MarkedYAMLError) -> int | None:
    """Where to look: at what was left open if the file ended before its end, else where parsing stopped."""
    at_end = "end of stream" in (error.problem or "") or "stream end" in (error.problem or "")
    first, second = error.problem_mark, error.context_mark
    mark = (second or first) if at_end else (first or second)
    return None if mark is None else mark.line + 1


def _syntax_message(error: MarkedYAMLError, text: str, line: int | None) -> tuple[str, str | None]:
    problem = (error.problem or error.context or "syntax error").strip()
    lines = text.splitlines()
    if line is not None and line <= len(lines):
        here = lines[line - 1]
        if "\t" in here[: len(here) - len(here.lstrip())] or "'\\t'" in problem:
            return "a tab stands where YAML wants spaces", "replace the tab with spaces"
    begun = error.context_mark
    if error.context and begun is not None and begun.line + 1 != line:
        problem += f", {error.context.strip()} that begins on line {begun.line + 1}"
    elif error.context:
        problem += f", {error.context.strip()}"
    return f"not valid YAML: {problem}", None


class _Frame:
    """An open mapping or list while events arrive."""

    def __init__(self, loc: Loc, *, mapping: bool) -> None:
        self.loc = loc
        self.mapping = mapping
        self.items: list[Any] = []
        self.pairs: dict[str, Any] = {}
        self.key: str | None = None

    def value(self) -> Any:
        return self.pairs if self.mapping else tuple(self.items)


class _Builder:
    def __init__(self, tree: YamlTree) -> None:
        self.tree = tree
        self.stack: list[_Frame] = []
        self.documents = 0

    def take(self, event: Any) -> None:
        line = event.start_mark.line + 1 if event.start_mark is not None else None
        if isinstance(event, DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise _RefusedError(
                    line, "the file holds more than one YAML document", "remove the second '---'"
                )
        elif isinstance(event, AliasEvent) or (isinstance(event, NodeEvent) and event.anchor is not None):
            raise _RefusedError(line, "anchors and aliases (& and *) are not accepted", "write the value out")
        elif isinstance(event, ScalarEvent):
            self._tagless(event, line)
            self._scalar(event, line)
        elif isinstance(event, MappingStartEvent | SequenceStartEvent):
            self._tagless(event, line)
            self._open(event, line)
        elif isinstance(event, MappingEndEvent | SequenceEndEvent):
            frame = self.stack.pop()
            if self.stack:
                self._place(frame.value())
            else:
                self.tree.data = frame.value()

    def _tagless(self, event: Any, line: int | None) -> None:
        tag = event.ctag if hasattr(event, "ctag") else event.tag
        if tag is not None and str(tag) not in ("", "None"):
            raise _RefusedError(line, f"the YAML tag {tag} is not accepted", "remove it")

    def _open(self, event: Any, line: int | None) -> None:
        if len(self.stack) >= MAX_DEPTH:
            raise _RefusedError(line, f"nested deeper than {MAX_DEPTH} levels")
        mapping = isinstance(event, MappingStartEvent)
        if self.stack:
            frame = self.stack[-1]
            if frame.mapping and frame.key is None:
                raise _RefusedError(line, "a key must be plain text", "quote it if it begins with { or [")
            loc = self._loc(frame)
        else:
            loc = ()
        if line is not None:
            self.tree.lines.setdefault(loc, line)
        self.stack.append(_Frame(loc, mapping=mapping))

    def _scalar(self, event: ScalarEvent, line: int | None) -> None:
        plain = event.style is None or event.style == ""
        if not self.stack:
            self.tree.data = _resolve(event.value, line) if plain else str(event.value)
            return
        frame = self.stack[-1]
        if frame.mapping and frame.key is None:
            self._key(frame, str(event.value), line)
            return
        loc = self._loc(frame)
        if line is not None:
            self.tree.lines.setdefault(loc, line)
        self._place(_resolve(event.value, line) if plain else str(event.value))

    def _key(self, frame: _Frame, key: str, line: int | None) -> None:
        frame.key = key
        loc = (*frame.loc, key)
        if key in frame.pairs:
            first = self.tree.lines.get(loc)
            name = ".".join(str(part) for part in loc)
            self.tree.problems.append(
                Problem(line, f"key {name!r} is given twice", f"the first is on line {first}: keep one")
            )
        elif line is not None:
            self.tree.lines[loc] = line

    def _loc(self, frame: _Frame) -> Loc:
        return (*frame.loc, frame.key if frame.mapping and frame.key is not None else len(frame.items))

    def _place(self, value: Any) -> None:
        frame = self.stack[-1]
        if frame.mapping and frame.key is not None:
            frame.pairs.setdefault(frame.key, value)
            frame.key = None
        elif not frame.mapping:
            frame.items.append(value)


def _resolve(text: str, line: int | None) -> Any:
    """A plain scalar by the YAML 1.2 core schema (section 10.3.2): null, bool, int, float, else text."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if _INT.fullmatch(text):
        return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if number in (float("inf"), float("-inf")):
            raise _RefusedError(line, f"the number {text[:24]} is out of range")
        return number
    return str(text)
