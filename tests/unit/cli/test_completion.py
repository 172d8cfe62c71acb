"""Tab completion, asked as a shell asks it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from glmspark.config import recipe_names
from glmspark.launch.record import home
from tests.unit.launch.starts import make_start

COMMAND = Path(sys.executable).with_name("glmspark")


def complete(line: str, **variables: str) -> list[str]:
    """What bash is told for a line whose last word is being typed."""
    asked = {
        "_GLMSPARK_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    done = subprocess.run(
        [COMMAND], env={**os.environ, **asked, **variables}, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    "line",
    [
        "glmspark up glm-5.2",
        "glmspark doctor --recipe glm-5.2",
        "glmspark fetch glm-5.2",
        "glmspark verify glm-5.2",
    ],
)
def test_recipes(line: str) -> None:
    assert complete(line) == [name for name in recipe_names() if name.startswith("glm-5.2")]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("glmspark up --backend ", ["mp", "ray", "lockstep"]),
        ("glmspark lab up --topology ", ["switch", "ring", "pair"]),
        ("glmspark tune plan --only s", ["sysctl", "swap", "services"]),
    ],
)
def test_what_an_option_takes(line: str, offered: list[str]) -> None:
    assert complete(line) == offered


@pytest.mark.parametrize("verb", ["down", "status", "logs", "chat --name"])
def test_deployments(verb: str, state: Path) -> None:
    for name in ("one", "other", "third"):
        where = home(name)
        where.prepare()
        where.write(make_start(name, "serves"))
    assert complete(f"glmspark {verb} o") == ["one", "other"]


def test_where_nothing_can_be_read_nothing_is_offered(state: Path) -> None:
    state.mkdir()
    (state / "deployments").write_text("not a directory")
    assert complete("glmspark down x") == []
    (state / "deployments").unlink()


@pytest.mark.parametrize(("shell", "file"), [("bash", ".bashrc"), ("zsh", ".zshrc")])
def test_it_is_installed_for_a_shell(shell: str, file: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [COMMAND, "--install-completion", shell],
        env={**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{shell} completion installed" in done.stdout
    assert (tmp_path / file).is_file()
    assert any("_glmspark" in path.read_text() for path in tmp_path.rglob("*glmspark*") if path.is_file())
