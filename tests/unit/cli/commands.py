"""Running the command line inside the test's process."""

from __future__ import annotations

import functools
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from glmspark.cli import main
from tests.unit.config.recipes import recipe_data
from tests.unit.models.toys import write_checkpoint


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, as JSON."""
        return json.loads(self.out)


_command = functools.cache(get_command)
"""Typer would build all commands anew for each call, as it does once in a process of its own."""


class Glmspark:
    """`glmspark WORDS`, without a process of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: str | Path) -> Done:
        """Run it to its end."""
        self._monkeypatch.setattr(sys, "argv", ["glmspark", *map(str, words)])
        self._monkeypatch.setattr("typer.main.get_command", _command)
        self._capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        captured = self._capsys.readouterr()
        return Done(code, captured.out, captured.err)


def toy_recipe(directory: Path, **sections: Any) -> Path:
    """A recipe `toy` in a file of its own, for a toy checkpoint beside it."""
    model = write_checkpoint(directory / "model")
    path = directory / "toy.yaml"
    path.write_text(json.dumps(recipe_data(**{"model": {"source": f"path:{model}"}, **sections}), indent=1))
    return path
