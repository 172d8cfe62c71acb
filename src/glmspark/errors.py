"""The errors people see.

Every error says what happened, where, what was seen and what to do next. The command line prints it as
one block with `error_block` and leaves with `exit_code`; `--json` prints `to_json()`.
"""

from __future__ import annotations

from typing import Any

__all__ = ["GlmsparkError", "StateError", "UsageError", "error_block"]


class GlmsparkError(Exception):
    """Base of all errors that glmspark raises on purpose.

    message: one sentence, no trailing period needed. host: the machine it happened on. step: what was being
    done ("start rank 1"). seen: the evidence, possibly several lines (the end of a log, stderr). next: the
    thing to do about it.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        host: str | None = None,
        step: str | None = None,
        seen: str | None = None,
        next: str | None = None,  # noqa: A002 - the field's name in every record and in the printed block
    ) -> None:
        super().__init__(message)
        self.message = message
        self.host = host
        self.step = step
        self.seen = seen
        self.next = next

    def __str__(self) -> str:
        return self.message

    def to_json(self) -> dict[str, Any]:
        """The error as JSON data, with the keys error, kind, host, step, seen, next."""
        return {
            "error": self.message,
            "kind": type(self).__name__,
            "host": self.host,
            "step": self.step,
            "seen": self.seen,
            "next": self.next,
        }


class UsageError(GlmsparkError):
    """The command line itself was wrong: exit code 2."""

    exit_code = 2


class StateError(GlmsparkError):
    """A record under the state directory could not be read or written."""


def error_block(error: GlmsparkError, *, colour: bool = False) -> str:
    """The block the command line prints on standard error, without a trailing newline.

    >>> print(error_block(GlmsparkError("port 8000 is taken", host="spark1", next="use --port")))
    error: port 8000 is taken
      host: spark1
      next: use --port
    """
    bold_red, dim, reset = ("\x1b[1;31m", "\x1b[2m", "\x1b[0m") if colour else ("", "", "")
    lines = [f"{bold_red}error:{reset} {_indent(error.message, 2)}"]
    for label, value in (
        ("host", error.host),
        ("step", error.step),
        ("seen", error.seen),
        ("next", error.next),
    ):
        if value:
            lines.append(f"  {dim}{label}:{reset} {_indent(value.strip(), 8)}")
    return "\n".join(lines)


def _indent(text: str, width: int) -> str:
    return text.replace("\n", "\n" + " " * width)
