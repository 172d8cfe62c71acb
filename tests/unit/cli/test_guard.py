"""`glmspark guard`: what the guard of this machine last said."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.unit.cli.commands import Glmspark

GIB = 2**30


def tell(state: Path, **more: Any) -> None:
    """A guard's state, as of now."""
    (state / "guard").mkdir(parents=True, exist_ok=True)
    memory = {"free": 3 * GIB, "available": 5 * GIB, "huge_free": GIB}
    said = {
        "time": time.time(),
        "guard": "0.1.0",
        "phase": "serving",
        "level": "low",
        "readings": {"memory": memory},
        "alerts": [{"kind": "memory-low", "what": "5.0 GiB available", "reading": memory}],
        "actions": [
            {
                "time": time.time(),
                "action": "close-admission",
                "deployment": "glm",
                "why": "memory is low",
                "result": "the agent was told (0.01 s)",
            }
        ],
    }
    (state / "guard/state.json").write_text(json.dumps(said | more) + "\n")


def test_none_runs(glmspark: Glmspark) -> None:
    done = glmspark("guard")
    assert done.code == 1
    assert "does not run" in done.out


def test_what_it_sees_and_did(glmspark: Glmspark, state: Path) -> None:
    tell(state)
    done = glmspark("guard")
    assert done.code == 0
    assert done.out.count("memory-low") == 2  # in the table, and in words
    for words in ("serving", "5 GiB", "close-admission glm: memory is low: the agent was told"):
        assert words in done.out
    found = glmspark("guard", "--json").json
    assert found["errors"] == []
    (one,) = found["guards"].values()
    assert one["runs"]
    assert one["state"]["level"] == "low"


def test_one_that_has_fallen_silent(glmspark: Glmspark, state: Path) -> None:
    tell(state, time=time.time() - 200)
    done = glmspark("guard")
    assert done.code == 1
    assert "silent for 3 min" in done.out
    assert glmspark("guard", "--json").code == 1


def test_a_state_that_is_none_is_an_error(glmspark: Glmspark, state: Path) -> None:
    tell(state)
    (state / "guard/state.json").write_text("{nonsense")
    done = glmspark("guard")
    assert done.code == 1
    assert "is not JSON" in done.err
    assert glmspark("guard", "--json").json["errors"][0]["error"]
