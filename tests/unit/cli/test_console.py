"""How the command line calls itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from glmspark.cli.console import own_command
from tests.unit.cli.commands import Glmspark


def program(directory: Path) -> Path:
    directory.mkdir()
    path = directory / "glmspark"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_it_calls_itself_as_a_shell_finds_it(tmp_path: Path) -> None:
    ours, other = program(tmp_path / "ours"), program(tmp_path / "an other")
    assert own_command(str(ours), path=str(ours.parent)) == "glmspark"
    assert own_command(str(ours), path="/nowhere") == str(ours)
    assert own_command(str(other), path=str(ours.parent)) == f"'{other}'"  # a shell would find another one
    assert own_command("/lib/python/glmspark/__main__.py", path="/nowhere") == "glmspark"
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "glmspark").symlink_to(ours)
    assert own_command(str(ours), path=str(tmp_path / "linked")) == "glmspark"


def test_advice_can_be_typed_as_it_stands(
    tmp_path: Path, state: Path, glmspark: Glmspark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glmspark.cli.own_command", lambda: ".venv/bin/glmspark")
    assert "next: `.venv/bin/glmspark up` serves glm-tiny" in glmspark("chat", "hi").err


@pytest.mark.parametrize("words", [["-h"], ["up", "-h"], ["recipe", "show", "-h"]])
def test_help_has_a_short_name(glmspark: Glmspark, words: list[str]) -> None:
    done = glmspark(*words)
    assert done.code == 0
    assert "Example: " in done.out
