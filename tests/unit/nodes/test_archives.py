"""A package of ours on a node: whole, once, and never pulled from under a process that runs from it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from glmspark.nodes.archives import Archive
from glmspark.nodes.node import LocalNode

LATE = """\
import sys
def main(words):
    print("ready", flush=True)
    sys.stdin.readline()
    from .deeper.late import WORD
    print(WORD, *words, flush=True)
    return 3
"""
MONTH = 30 * 86400


def package(directory: Path, word: str) -> ModuleType:
    """A package `toy` whose program imports one of its modules late."""
    root = directory / "toy"
    (root / "deeper").mkdir(parents=True)
    (root / "__init__.py").write_text("")
    (root / "deeper" / "__init__.py").write_text("")
    (root / "deeper" / "late.py").write_text(f"WORD = {word!r}\n")
    (root / "program.py").write_text(LATE)
    spec = importlib.util.spec_from_file_location("toy", root / "__init__.py")
    assert spec is not None
    return importlib.util.module_from_spec(spec)


def toy(directory: Path, word: str = "first") -> Archive:
    return Archive("toy", package(directory, word), "program", {"ok": False})


def ship(archive: Archive, directory: str) -> Path:
    return Path(asyncio.run(archive.ship(LocalNode(), directory)))


def test_it_is_shipped_once_and_runs(tmp_path: Path) -> None:
    archive, home = toy(tmp_path), tmp_path / "a home"
    path = ship(archive, str(home))
    assert path == home / f"toy-{archive.digest}.pyz"
    assert path.read_bytes() == archive.data
    assert path.stat().st_mode & 0o777 == 0o600
    inode = path.stat().st_ino
    assert ship(archive, str(home)) == path
    assert path.stat().st_ino == inode
    assert list(home.iterdir()) == [path]
    argv = [sys.executable, "-I", path, "said"]
    done = subprocess.run(argv, input="\n", capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (3, "ready\nfirst said\n")


def test_a_relative_directory_lies_below_the_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLMSPARK_STATE_DIR", str(tmp_path / "state"))
    assert ship(toy(tmp_path), "toys").parent == tmp_path / "state" / "toys"


def test_other_versions_stay_while_they_are_young_or_run(tmp_path: Path) -> None:
    home = tmp_path / "home"
    old, young, running = (
        ship(toy(tmp_path / word, word), str(home)) for word in ("old", "young", "running")
    )
    for path in (old, running):
        os.utime(path, (time.time() - MONTH,) * 2)
    for name in (".toy.abcdefgh", ".toy.ABCDEFGH", "other"):
        (home / name).touch()
        if name != ".toy.ABCDEFGH":
            os.utime(home / name, (time.time() - MONTH,) * 2)
    with subprocess.Popen(
        [sys.executable, "-I", running, "on"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        kept = {young.name, running.name, ".toy.ABCDEFGH", "other"}
        newest = ship(toy(tmp_path / "new", "new"), str(home))
        assert {path.name for path in home.iterdir()} == kept | {newest.name}
        assert process.communicate("\n", timeout=30)[0] == "running on\n"


def test_a_version_in_use_again_counts_as_young(tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = toy(tmp_path / "first")
    path = ship(first, str(home))
    os.utime(path, (time.time() - MONTH,) * 2)
    ship(first, str(home))
    ship(toy(tmp_path / "second", "second"), str(home))
    assert path.exists()


def test_an_old_python_says_so_in_the_words_of_the_package(tmp_path: Path) -> None:
    path = ship(toy(tmp_path), str(tmp_path))
    code = "import runpy, sys; sys.version_info = (3, 9, 2); runpy.run_path(sys.argv[1], run_name='__main__')"
    argv = [sys.executable, "-I", "-c", code, path]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout) == {
        "ok": False,
        "error": "Python 3.10 or newer is needed, this is 3.9",
        "step": "run the toy",
        "next": "install a newer python3, such as that of Ubuntu 22.04",
    }
