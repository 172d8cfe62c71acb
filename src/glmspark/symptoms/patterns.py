"""Patterns of log lines that cost a bounded time on any line, whoever wrote it.

They are regular expressions of a small kind: a `.*` between parts stands for anything, and each part is a
plain expression whose repeats are bounded and not nested. Parts are looked for one after the other, each at
its first place behind the one before, so no line makes the matcher try combinations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

__all__ = ["LONGEST_LINE", "Pattern", "PatternError"]

LONGEST_LINE = 4096
"""Characters of a line that are looked at, around the pattern's literal."""

_MOST_REPEATS = 200
_MOST_WORK = 4000  # ways through one part from one place
_LEAST_LITERAL = 4  # characters that must stand there as they are, to find candidates fast


class PatternError(ValueError):
    """A pattern that might take long, or that names nothing to look for."""


@dataclass(frozen=True)
class Pattern:
    """source: as written. literal: text without which no line fits. parts: what must follow one another."""

    source: str
    literal: str
    parts: tuple[re.Pattern[str], ...]

    @classmethod
    def parse(cls, source: str) -> Pattern:
        """Read a pattern. Raises PatternError."""
        try:
            tree = parser.parse(source)
        except (re.error, OverflowError, RecursionError) as error:
            raise PatternError(f"not a regular expression: {error}") from None
        if tree.state.flags & ~re.UNICODE:
            raise PatternError("flags such as (?i) are not accepted")
        for part in _split(list(tree)):
            if (work := _work(part)) > _MOST_WORK:
                raise PatternError(f"there are {work} ways through a part of it; at most {_MOST_WORK}")
        literal = max((_literal(part) for part in _split(list(tree))), key=len, default="")
        if len(literal) < _LEAST_LITERAL:
            raise PatternError(f"it has no {_LEAST_LITERAL} characters in a row that must be there")
        texts = re.split(r"(?<!\\)\.\*", source)
        if len(texts) != len(_split(list(tree))):
            raise PatternError("`.*` may stand between parts only, not in groups or classes")
        return cls(source, literal, tuple(re.compile(text) for text in texts))

    def search(self, line: str) -> bool:
        """Whether a line fits. Of a long one, what stands around the literal is looked at."""
        at = line.find(self.literal)
        if at < 0:
            return False
        if len(line) > LONGEST_LINE:
            line = line[max(0, at - LONGEST_LINE // 2) : at + LONGEST_LINE // 2]
        position = 0
        for part in self.parts:
            found = part.search(line, position)
            if found is None:
                return False
            position = found.end()
        return True


def _split(items: list[Any]) -> list[list[Any]]:
    """The parts between `.*`."""
    parts: list[list[Any]] = [[]]
    for operation, argument in items:
        if operation is codes.MAX_REPEAT and argument[1] is codes.MAXREPEAT and _only(argument[2], codes.ANY):
            if argument[0] != 0:
                raise PatternError("write `.*`, not `.+`")
            parts.append([])
        else:
            parts[-1].append((operation, argument))
    return parts


def _only(items: Any, operation: Any) -> bool:
    return len(items) == 1 and items[0][0] is operation


_SINGLE = (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN)


def _work(items: Any) -> int:
    """An upper bound of the ways through a sequence from one place."""
    ways = 1
    for operation, argument in items:
        if operation in (*_SINGLE, codes.AT):
            continue
        if operation is codes.SUBPATTERN:
            ways *= _work(argument[3])
        elif operation is codes.BRANCH:
            ways *= sum(_work(branch) for branch in argument[1])
        elif operation in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            least, most, body = argument
            if most is codes.MAXREPEAT or most > _MOST_REPEATS:
                raise PatternError(f"a repeat has no end: write {{0,{_MOST_REPEATS}}} or less")
            if most > 1 and not (len(body) == 1 and body[0][0] in _SINGLE):
                raise PatternError("a group may not be repeated")
            ways *= (most - least + 1) * _work(body)
        else:
            raise PatternError(f"{str(operation).lower()} is not accepted")
    return ways


def _literal(items: Any) -> str:
    """The longest text that must stand in whatever fits a sequence."""
    best, run = "", ""
    for operation, argument in items:
        if operation is codes.LITERAL:
            run += chr(argument)
            continue
        if operation is codes.SUBPATTERN and all(one[0] is codes.LITERAL for one in argument[3]):
            run += "".join(chr(one[1]) for one in argument[3])
            continue
        best, run = max(best, run, key=len), ""
    return max(best, run, key=len)
