"""The first error in a rank's output. Pure.

The last traceback is the wrong one to read: when a worker dies, its engine, its API server and the other
ranks each die of that in turn, and vLLM prints all of it. What happened first is the cause.
"""

from __future__ import annotations

import re
from collections import deque

# "(Worker_TP1 pid=9245) ERROR 11-30 12:44:02 [multiproc_executor.py:953] text", each part optional.
_PREFIX = re.compile(
    r"^(?:\((?P<who>[\w-]+) pid=\d+\) )?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[[^\]]*\] ?)?"
)
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning|Timeout)?(?:: |$)"
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# What our own entry point, the interpreter and torch's crash handler say without a traceback.
_PLAIN = re.compile(
    r"^(?:python -m )?glmspark\.engine\.serve: |^\S*python\S*: (?:can't|No module named)"
    r"|^Fatal Python error: "
)

_OVER = ("During handling of", "The above exception", "Traceback (most recent call last)")
_WARNS = ("WARNING", "ERROR", "CRITICAL")
_HINT = re.compile(r"NCCL WARN|NVRM|[Ee]rror\b|failed|Killed|SemLock")  # what libraries say in their own ways
_MOST_HINTS, _LONGEST_HINT = 400, 1000
_MOST_LINES = 40  # of an exception's text
_LONGEST = 2000  # lines of a traceback; beyond, it is none


class FirstError:
    """Reads a rank's output line by line and keeps its first error.

    message: the exception's own line(s), None while there is none. place: the last frame of its traceback.
    said: the first line logged as an error. tail: the last lines, for a rank that ended without one. hints:
    the first lines that warn of something, whoever says them.
    """

    def __init__(self) -> None:
        self.message: str | None = None
        self.place: str | None = None
        self.said: str | None = None
        self.tail: deque[str] = deque(maxlen=12)
        self.hints: list[str] = []
        self._who: str | None = None
        self._within = False
        self._logged = False
        self._count = 0

    def feed(self, line: str) -> None:
        """Take one more line, without its line end."""
        line = _COLOURS.sub("", line)
        match = _PREFIX.match(line)
        who, level = (match["who"], match["level"]) if match else (None, None)
        text = line[match.end() :] if match else line
        if line.strip():
            self.tail.append(line)
        if self.said is None and level in ("ERROR", "CRITICAL"):
            self.said = text.strip()
        if len(self.hints) < _MOST_HINTS and (level in _WARNS or _HINT.search(line)):
            self.hints.append(line[:_LONGEST_HINT])
        if self._within:
            self._continue(who, level, text)
        elif self.message is None:
            self._begin(who, text, logged=level is not None)

    def _begin(self, who: str | None, text: str, *, logged: bool) -> None:
        if _PLAIN.match(text):
            self.message = text.strip()
        elif text.startswith("Traceback (most recent call last):"):
            self._who, self._within, self._logged, self._count = who, True, logged, 0

    def _continue(self, who: str | None, level: str | None, text: str) -> None:
        if who != self._who and who is not None:
            return  # another process of the same rank speaks in between
        self._count += 1
        if self._count > _LONGEST:
            self._within = False
            return
        stripped = text.strip()
        if self.message is None:
            if text.startswith("  File "):
                self.place = stripped
            elif not text.startswith(" ") and _EXCEPTION.match(text):
                self.message = stripped
            return
        # The exception's text may go on: on indented lines, or in the same logged record.
        goes_on = bool(stripped) and (level == "ERROR" if self._logged else text.startswith((" ", "\t")))
        if goes_on and self.message.count("\n") < _MOST_LINES and not stripped.startswith(_OVER):
            self.message += "\n" + text.rstrip()
        else:
            self._within = False

    def report(self) -> str | None:
        """The evidence to show: the first error and where it was raised, else the last lines, else None."""
        if self.message is not None:
            return f"{self.message}\n  at {self.place}" if self.place else self.message
        return self.said or "\n".join(self.tail) or None
