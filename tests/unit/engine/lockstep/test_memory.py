"""Ranks of one machine share memory, those of two do not, and nothing is left of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glmspark.engine.lockstep import memory


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory, "SHARED", tmp_path)
    return tmp_path


def test_the_same_memory_is_the_same_word(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    word = memory.domain()
    assert memory.domain() == word
    (shared / "other").mkdir()
    monkeypatch.setattr(memory, "SHARED", shared / "other")
    assert memory.domain() != word
    assert "/" not in word


def test_the_address_ends_in_the_word() -> None:
    """vLLM makes the name of the shared memory from what follows the last colon."""
    for address in ("198.18.0.1:29555", "[fd00::1]:29555"):
        assert memory.join_address(address) == f"tcp://{address}?node={memory.domain()}"
        assert memory.join_address(address).split(":")[-1] == f"29555?node={memory.domain()}"


def test_the_groups_own_names_go_and_others_stay(shared: Path) -> None:
    word = memory.domain()
    mine = [f"29555?node={word}-tp:0-[0-1]-cpushm_{rank}" for rank in (0, 1)]
    others = [f"29556?node={word}-tp:0-[0-1]-cpushm_0", f"29555?node={word}-psm", "29555-tp:0-[0-1]-cpushm_0"]
    for name in [*mine, *others]:
        (shared / name).touch()
    memory.forget("198.18.0.1:29555")
    memory.forget("198.18.0.1:29555")
    assert sorted(os.listdir(shared)) == sorted(others)  # noqa: PTH208 - names are compared
