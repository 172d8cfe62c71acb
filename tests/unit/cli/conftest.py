"""Every test of the command line has a state directory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from glmspark.launch.down import stop
from glmspark.launch.record import homes
from tests.unit.cli.commands import Glmspark


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory; what the test left running is stopped."""
    monkeypatch.setenv("GLMSPARK_STATE_DIR", str(tmp_path / "state"))
    for name in ("GLMSPARK_API_KEY", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    yield tmp_path / "state"
    for home in homes():
        stop(home)


@pytest.fixture
def glmspark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Glmspark:
    """The command line."""
    return Glmspark(monkeypatch, capsys)
