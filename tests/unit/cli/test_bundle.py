"""`glmspark bundle`: what people and programs see."""

from __future__ import annotations

from pathlib import Path

import pytest

from glmspark.launch.record import State, home
from tests.unit.cli.commands import Glmspark
from tests.unit.launch.starts import make_start


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def failed(name: str) -> None:
    place = home(name)
    place.prepare()
    deployment = make_start(name, "serves")
    deployment.close(State.FAILED)
    place.write(deployment)
    place.rank_log(0).write_text("a line\n")


def test_it_says_what_is_inside_and_where(glmspark: Glmspark, tmp_path: Path) -> None:
    failed("one")
    done = glmspark("bundle", "--no-doctor")
    assert done.code == 0
    (path,) = tmp_path.glob("glmspark-one-*.tar.gz")
    assert path.name in done.out
    assert "logs" in done.out
    assert "readable by you alone" in done.out
    done = glmspark("explain", str(path))
    assert done.code == 3


def test_json_and_a_name_of_its_own(glmspark: Glmspark, tmp_path: Path) -> None:
    failed("one")
    done = glmspark("bundle", "one", "--no-doctor", "--json", "-o", str(tmp_path / "b.tar.gz"))
    assert done.json["path"] == str(tmp_path / "b.tar.gz")
    assert done.json["size"] == (tmp_path / "b.tar.gz").stat().st_size
    assert "record.json" in done.json["files"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nothing",), "there is no deployment nothing"),
        (("one", "-o", "nowhere/b.tar.gz"), "there is no directory nowhere"),
        (("one", "-o", "."), "is a directory"),
        (("one", "-o", "b.zip"), "a bundle is a .tar.gz"),
        (("--cluster", "missing.yaml"), "which deployment?"),
    ],
)
def test_what_is_refused_writes_nothing(
    glmspark: Glmspark, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    failed("one")
    done = glmspark("bundle", "--no-doctor", *words)
    assert done.code == 2
    assert said in done.err
    assert list(tmp_path.glob("*.tar.gz")) == []
