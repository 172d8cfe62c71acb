"""Every test has a state directory of its own, and nothing may be left running in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from glmspark.launch.down import stop
from glmspark.launch.record import homes


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory; what the test left running is stopped."""
    monkeypatch.setenv("GLMSPARK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("GLMSPARK_API_KEY", raising=False)
    yield tmp_path / "state"
    for home in homes():
        stop(home)
