"""What the leader decides: when it stays down, and what is no failed question. And what it is told from."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glmspark.launch.node_agent import api, keep, leader, readings
from glmspark.launch.node_agent.leader import Leader
from tests.unit.launch.agent.specs import spec


def leading(restarts: list[dict[str, Any]], **watching: Any) -> tuple[Leader, list[Any]]:
    over: list[Any] = []
    state = {"state": "waiting", "restarts": restarts}
    agent: Any = SimpleNamespace(spec=spec(watching=watching), state=state, finish=over.append)
    return Leader(agent), over


@pytest.mark.parametrize("cause", [None, {"what": "spark2 was silent", "kind": "lost", "rank": 1}])
def test_a_load_that_takes_its_node_down_is_not_begun_for_ever(cause: dict[str, Any] | None) -> None:
    proven, vain = {"seconds": 9.0}, {"seconds": None}
    for restarts in ([], [vain, vain], [vain, vain, proven, vain, vain], [vain, vain, vain, proven]):
        one, over = leading(list(restarts), keep_up=True)
        assert one._entry(cause) is not None
        assert over == []
    one, over = leading([proven, vain, vain, vain], keep_up=True)
    assert one._entry(cause) is None
    assert over[0]["what"].endswith("3 starts in a row never came to be ready, so it stays down")
    one, _ = leading([vain] * 4, keep_up=True, times=5)
    assert one._entry(cause) is not None


def test_restarts_of_a_clock_that_was_ahead_do_not_count() -> None:
    one, over = leading([], times=1)
    cause = {"what": "rank 1 ended", "kind": "ended"}
    one.agent.state["counted"] = [time.time() + 1e6]
    assert one._entry(cause) is not None
    assert one._entry(cause) is None
    assert over[0]["what"] == "rank 1 ended; restarted once within 30 min, so it stays down"


def test_a_question_that_closed_admission_turned_away_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = leading([], every=0.01)
    told: list[Any] = []
    agent: Any = one.agent
    agent.admission = SimpleNamespace(is_open=True)
    agent.spec = spec(watching={"every": 0.01}, api={"host": "h", "listen": "h", "port": 1, "model": "m"})
    one.judge = SimpleNamespace(idle=True, canary=lambda why, now: told.append(why))  # type: ignore[assignment]

    def refused(*_: Any) -> None:
        agent.admission.is_open = closes is False
        raise api.ApiError("/v1/completions answers 503")

    monkeypatch.setattr(leader.asked, "one_token", refused)

    async def ask() -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(one._ask(), 0.2)

    closes = True
    asyncio.run(ask())
    assert told == []
    closes, agent.admission.is_open = False, True
    asyncio.run(ask())
    assert told[0] == "/v1/completions answers 503"


@pytest.mark.parametrize(
    "state",
    [
        {"version": 2, "readings": [], "alerts": {}},
        {"version": 1, "readings": [1], "alerts": {"a": 1}},
        {"version": 1, "readings": {"gpu": {"util": 1}}, "alerts": "x"},
        {"version": 1, "time": [1]},
        {"version": 1, "time": "soon"},
        [],
    ],
)
def test_a_guard_of_another_version_ends_no_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Any
) -> None:
    monkeypatch.setattr(readings, "guard_places", lambda: [tmp_path])
    value = {"time": time.time(), **state} if isinstance(state, dict) else state
    (tmp_path / "state.json").write_text(json.dumps(value))
    found = readings.look([], None, None)
    assert (found.gpus, found.alerts) == ((), ())


def test_the_newest_evidence_stays_whatever_the_clock_says(tmp_path: Path) -> None:
    for year in (2030, 2031, 2032, 2033, 2034, 2026):
        (tmp_path / f"{year}1130T190000Z").mkdir()
    keep._forget(tmp_path, but="20261130T190000Z")
    left = sorted(one.name[:4] for one in tmp_path.iterdir())
    assert left == ["2026", "2031", "2032", "2033", "2034"]
