"""Tab completion, asked as a shell asks it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from glmspark.cli import app
from glmspark.config import recipe_names
from glmspark.launch.record import home
from tests.unit.launch.starts import make_start

COMMAND = Path(sys.executable).with_name("glmspark")


def asked(line: str) -> dict[str, str]:
    """The environment in which bash asks for a line whose last word is being typed."""
    return {
        "_GLMSPARK_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }


@pytest.fixture
def complete(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], list[str]]:
    """What bash is told for a line, asked in this process."""

    def ask(line: str) -> list[str]:
        for name, value in asked(line).items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            app(prog_name="glmspark")
        said = capsys.readouterr()
        assert (end.value.code, said.err) == (0, "")
        return said.out.split()

    return ask


def test_as_a_process_of_its_own() -> None:
    environment = {**os.environ, **asked("glmspark up glm-5.2")}
    done = subprocess.run([COMMAND], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.split() == [name for name in recipe_names() if name.startswith("glm-5.2")]


@pytest.mark.parametrize(
    "line",
    [
        "glmspark up glm-5.2",
        "glmspark doctor --recipe glm-5.2",
        "glmspark fetch glm-5.2",
        "glmspark verify glm-5.2",
    ],
)
def test_recipes(line: str, complete: Callable[[str], list[str]]) -> None:
    assert complete(line) == [name for name in recipe_names() if name.startswith("glm-5.2")]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("glmspark up --backend ", ["mp", "ray", "lockstep"]),
        ("glmspark lab up --topology ", ["switch", "ring", "pair"]),
        ("glmspark tune plan --only s", ["sysctl", "swap", "services"]),
    ],
)
def test_what_an_option_takes(line: str, offered: list[str], complete: Callable[[str], list[str]]) -> None:
    assert complete(line) == offered


@pytest.mark.parametrize("verb", ["down", "status", "logs", "chat --name"])
def test_deployments(verb: str, state: Path, complete: Callable[[str], list[str]]) -> None:
    for name in ("one", "other", "third"):
        where = home(name)
        where.prepare()
        where.write(make_start(name, "serves"))
    assert complete(f"glmspark {verb} o") == ["one", "other"]


def test_where_nothing_can_be_read_nothing_is_offered(
    state: Path, complete: Callable[[str], list[str]]
) -> None:
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
