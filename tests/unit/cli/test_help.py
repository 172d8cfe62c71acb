"""`--help` of every command: it has an example, and every word of it is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from glmspark.cli import app
from tests.unit.cli.commands import Glmspark


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that call it, groups among them."""
    yield words, command
    for name, one in getattr(command, "commands", {}).items():
        yield from commands(one, (*words, name))


COMMANDS = dict(commands(get_command(app)))


def flat(text: str) -> str:
    """Text without frames and line breaks."""
    return re.sub(r"[\s│]+", " ", text)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command(words: tuple[str, ...], glmspark: Glmspark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    done = glmspark(*words, "--help")
    assert done.code == 0
    shown = flat(done.out)
    assert "Example: glmspark " in shown
    assert "[[" not in shown
    for parameter in COMMANDS[words].params:
        told = getattr(parameter, "help", None) or ""
        # Square brackets are markup unless they are escaped: what is meant is compared with what is shown.
        assert flat(told.replace("\\[", "[")) in shown, parameter.name
