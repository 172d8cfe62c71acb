"""What goes wrong with a file of glmspark, or one that is named to it, comes with what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from glmspark.cli.up import api_key
from glmspark.errors import GlmsparkError
from glmspark.launch import lock as locks
from glmspark.launch.command import free_port
from glmspark.launch.explain import explain_file
from glmspark.launch.record import home, homes


def a_lock(state: Path) -> None:
    (state / "lock").mkdir()
    locks.take(state / "lock")


def a_list(state: Path) -> None:
    (state / "deployments").write_text("no directory")
    try:
        list(homes())
    finally:
        (state / "deployments").unlink()


def a_key_of_a_deployment(state: Path) -> None:
    home("one").key_file.mkdir(parents=True)
    home("one").read_key()


def a_key_that_is_named(state: Path) -> None:
    api_key(None, state / "none")


def a_key_that_is_too_long(state: Path) -> None:
    (state / "long").write_text("x" * 5000)
    api_key(None, state / "long")


def an_address(state: Path) -> None:
    free_port("192.0.2.1")


def a_log(state: Path) -> None:
    explain_file("/dev/null/log")


@pytest.mark.parametrize(
    "work",
    [a_lock, a_list, a_key_of_a_deployment, a_key_that_is_named, a_key_that_is_too_long, an_address, a_log],
    ids=lambda work: work.__name__,
)
def test_there_is_a_next_step(
    work: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLMSPARK_STATE_DIR", str(tmp_path))
    with pytest.raises(GlmsparkError) as caught:
        work(tmp_path)
    assert caught.value.next
