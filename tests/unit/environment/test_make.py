"""The Makefile, beside a set-up and a `glmspark` that are stood in for."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose set-up does nothing and whose environment lies at a path with a blank."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "bootstrap.py").write_text("")
    program = tmp_path / "an environment" / "bin" / "glmspark"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "glmspark $@"\n')
    program.chmod(0o755)
    return tmp_path


def make(checkout: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "GLMSPARK_VENV": str(checkout / "an environment"), **variables}
    return subprocess.run(
        ["make", *words],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_an_environment_may_lie_at_a_path_with_blanks(checkout: Path) -> None:
    done = make(checkout, "serve", "ARGS=--port 8200")
    assert (done.returncode, done.stdout) == (0, "glmspark up --port 8200\n"), done.stderr
    (checkout / "dist").mkdir()
    # All of them: with several, `down` alone would ask which, and nothing would be removed.
    assert make(checkout, "clean").stdout.startswith("glmspark down --all\n")
    assert not (checkout / "dist").exists()


def test_a_python_that_is_not_there(checkout: Path) -> None:
    done = make(checkout, "serve", "PYTHON=/no/such/python")
    assert done.returncode == 2
    assert "error: /no/such/python is not on this machine" in done.stderr
    assert "next:  name one that is" in done.stderr  # Debian's packages would not bring this one


def test_no_python_at_all(checkout: Path) -> None:
    programs = checkout / "programs"
    programs.mkdir()
    for name in ("make", "sh"):
        (programs / name).symlink_to(shutil.which(name) or "")
    done = make(checkout, "serve", PATH=str(programs))
    assert done.returncode == 2
    assert "error: python3 is not on this machine" in done.stderr
    assert "next:  on Debian and Ubuntu: tools/debian-packages.sh --install" in done.stderr
