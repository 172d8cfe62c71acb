"""Relays that tests start need not compile their code each time."""

from __future__ import annotations

import pytest

from glmspark.weights.archive import RELAY
from tests.unit.compiled import compiled


@pytest.fixture(autouse=True)
def relay_with_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shipped and run holds compiled code as well."""
    monkeypatch.setattr(RELAY, "data", compiled(RELAY.data))
