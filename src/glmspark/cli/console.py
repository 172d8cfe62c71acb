"""How the command line talks: JSON for programs, colours only on a terminal, errors as one block."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

_COLOURS = ("\x1b[36m", "\x1b[33m", "\x1b[35m", "\x1b[32m", "\x1b[34m", "\x1b[31m")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def wants_colour(stream: TextIO) -> bool:
    """Whether to colour what goes to a stream: a terminal that does not say no (NO_COLOR, TERM=dumb)."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def print_json(value: Any) -> None:
    """Print one JSON value on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_line(number: int, who: str, line: str, *, alone: bool) -> None:
    """Print a line of a log. number: of who says it, for the colour; alone: nobody else says anything."""
    if alone:
        print(line)
    elif wants_colour(sys.stdout):
        print(f"{_COLOURS[number % len(_COLOURS)]}{who}\x1b[0m  {line}")
    else:
        print(f"{who}  {line}")


def own_command(program: str | None = None, path: str | None = None) -> str:
    """How to call glmspark from here: by name where a shell finds this very program, else as it was called.

    After `make serve` it lies in .venv/bin, where no shell looks. program: how it was called, by default
    `sys.argv[0]`. path: where the shell looks, by default PATH.
    """
    called = Path(sys.argv[0] if program is None else program)
    if called.name != "glmspark" or not called.exists():
        return "glmspark"
    found = shutil.which("glmspark", path=path)
    if found is not None and Path(found).resolve() == called.resolve():
        return "glmspark"
    return shlex.quote(str(called))


def duration(seconds: float) -> str:
    """A time span for people: 4.2 s, 3 min 10 s, 2 h 5 min, 3 d 4 h."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def complete_deployment(incomplete: str) -> list[str]:
    """Names of deployments for tab completion; none where they cannot be read: a command says why."""
    from glmspark.errors import GlmsparkError
    from glmspark.launch.record import homes

    try:
        return [home.name for home in homes() if home.name.startswith(incomplete)]
    except GlmsparkError:
        return []
