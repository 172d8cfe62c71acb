"""One word, one reason and one order of lines from what several nodes say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.config.cluster import Cluster
from glmspark.launch.agents import Logged
from glmspark.launch.cluster_ops import Place, interleave, record_of
from glmspark.launch.cluster_status import overall, status_of
from glmspark.launch.record import Reason, State
from glmspark.nodes.transport import NodeError
from tests.unit.launch.starts import make_start

STATES = ("starting", "running", "ready", "stopping", "stopped", "failed", "lost")


def state(rank: int, word: str, **more: Any) -> dict[str, Any]:
    known = {"state": word, "rank": rank, "world": 3, "since": 100.0 + rank, "created": 50.0}
    return {
        **known,
        "alive": word not in ("stopped", "failed", "lost"),
        "directory": "/d",
        "reason": None,
        **more,
    }


def nodes(*words: str | None) -> dict[str, Any]:
    return {f"spark{rank + 1}": state(rank, word) if word else None for rank, word in enumerate(words)}


@pytest.mark.parametrize(
    ("words", "whole"),
    [
        (("ready", "ready", "ready"), "ready"),
        (("ready", "ready", None), "starting"),
        (("running", "ready", "ready"), "starting"),
        (("starting", None, None), "starting"),
        (("ready", "failed", "stopping"), "failed"),
        (("ready", "lost", "ready"), "lost"),
        (("ready", "stopped", "stopping"), "stopping"),
        (("stopped", "stopped", "stopped"), "stopped"),
        (("restarting", "restarting", "ready"), "restarting"),
        (("waiting", "restarting", "lost"), "waiting"),
        (("failed", "waiting", "waiting"), "waiting"),
        (("restarting", "failed", "restarting"), "failed"),
    ],
)
def test_one_word_for_all(words: tuple[str | None, ...], whole: str) -> None:
    assert overall(nodes(*words), None) == whole


@given(st.lists(st.sampled_from(STATES), min_size=1, max_size=8))
def test_it_is_ready_only_if_all_are(words: list[str]) -> None:
    whole = overall(nodes(*words), None)
    assert (whole == "ready") == (set(words) == {"ready"})
    assert ("failed" in words) == (whole == "failed")


def test_the_cause_goes_before_what_follows_from_it() -> None:
    cause = {"what": "rank 2 was killed", "rank": 2, "node": "spark3", "at": 12.0, "next": "x"}
    lost = {"what": "the agent of rank 2 closed", "rank": 2, "node": "spark3", "at": 11.0, "next": "y"}
    states = {
        "spark1": state(0, "failed", reason=lost),
        "spark2": NodeError("cannot reach it", host="spark2"),
        "spark3": state(2, "failed", reason=cause),
    }
    status = status_of("one", states, None, None, now=200.0)
    assert (status.state, status.reason, status.exit_code) == ("failed", cause, 1)
    assert [(rank.node, rank.phase) for rank in status.ranks] == [
        ("spark2", "not reached: cannot reach it"),
        ("spark1", "failed"),
        ("spark3", "failed"),
    ]


def test_a_start_that_was_given_up_has_failed_though_its_ranks_were_stopped() -> None:
    record = make_start("one", "serves", "serves", "serves")
    reason = Reason(what="1 of 2 canaries failed: sum", at=5.0)
    record.state, record.reason = State.FAILED, reason
    status = status_of("one", nodes("stopped", "stopped", "stopped"), record, None, now=200.0)
    assert (status.state, (status.reason or {})["what"]) == ("failed", reason.what)
    status = status_of("one", nodes("ready", "ready", "ready"), record, None, now=200.0)
    assert status.state == "ready"  # restarted from another machine


def test_restarts_evidence_and_admission_are_shown() -> None:
    restart = {"at": 1.0, "cause": {"what": "rank 1 ended"}, "evidence": "/d/evidence/1", "seconds": 20.0}
    closed = {"open": False, "since": 2.0, "why": "memory is low on spark2"}
    states = nodes("restarting", "restarting", "restarting")
    states["spark1"] |= {
        "restarts": [restart],
        "evidence": "/d/evidence/1",
        "admission": closed,
        "node": "spark1",
    }
    states["spark2"] |= {"restarts": [], "node": "spark2"}
    status = status_of("one", states, None, None, now=200.0)
    assert (status.state, status.exit_code, status.restarts) == ("restarting", 3, [restart])
    assert (status.evidence, status.admission) == ({"spark1": "/d/evidence/1"}, closed)
    assert status.to_json()["restarts"] == [restart]


def test_the_latest_record_counts() -> None:
    old, new = make_start("one", "serves"), make_start("one", "serves")
    new.created = old.created + 10
    new.id = old.id
    place = Place(Cluster.model_construct(), ("spark1",), "one", deployment=old)
    known = {"spark1": {**state(0, "ready"), "id": old.id, "record": new.model_dump(mode="json")}}
    assert record_of(place, known) == new
    known["spark1"]["record"] = {"of": "something else"}
    assert record_of(place, known) is old
    known["spark1"]["id"] = "another start"
    assert record_of(place, known) is None


def test_uptime_counts_from_the_last_that_became_ready() -> None:
    status = status_of("one", nodes("ready", "ready", "ready"), None, None, now=112.0)
    assert (status.uptime, status.exit_code) == (10.0, 1)  # without an answer about its requests


def test_lines_stand_in_the_order_of_their_times() -> None:
    one = Logged(
        "spark1", 0, ["booting", "INFO 11-30 12:00:01 a", "  more of a", "INFO 11-30 12:00:05 b"], ""
    )
    two = Logged("spark2", 1, ["INFO 11-30 12:00:03 c", "INFO 11-30 12:00:02 late"], "")
    assert [line for _, line in interleave([two, one])] == [
        "booting",
        "INFO 11-30 12:00:01 a",
        "  more of a",
        "INFO 11-30 12:00:03 c",
        "INFO 11-30 12:00:02 late",  # a rank's own order stays
        "INFO 11-30 12:00:05 b",
    ]


@given(st.lists(st.lists(st.text(max_size=25), max_size=6), max_size=4))
def test_no_line_is_lost_and_each_ranks_order_stays(logs: list[list[str]]) -> None:
    given_ = [Logged(f"spark{rank}", rank, lines, "") for rank, lines in enumerate(logs)]
    found = interleave(given_)
    for one in given_:
        assert [line for log, line in found if log.rank == one.rank] == one.lines
