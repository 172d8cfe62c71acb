"""States, reasons and the leash."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.launch.node_agent.life import (
    LEASH,
    LEASH_CLOSED,
    LEASH_FIRST,
    OVER,
    Leash,
    container_status,
    describe_end,
    reason_of,
    turn,
)
from tests.unit.launch.agent.specs import spec

STATES = ("starting", "running", "ready", "stopping", "stopped", "failed")


@given(st.lists(st.sampled_from(STATES), max_size=12))
def test_nothing_comes_back_to_life(wanted: list[str]) -> None:
    state, passed = {"state": "starting"}, ["starting"]
    for number, one in enumerate(wanted):
        try:
            state = turn(state, one, at=float(number))
        except ValueError:
            continue
        passed.append(one)
    assert passed == sorted(passed, key=STATES.index)  # only ever forward
    assert len(passed) == len(set(passed))
    if passed[-1] in OVER:
        assert passed[-2] == "stopping"


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (0, (0, None, "ended with exit code 0")),
        (3, (3, None, "ended with exit code 3")),
        (-9, (None, "SIGKILL", "was killed by SIGKILL")),
        (-40, (None, "signal 40", "was killed by signal 40")),
        (None, (None, None, "ended")),
    ],
)
def test_ends_in_words(status: int | None, told: tuple[object, ...]) -> None:
    assert describe_end(status) == told


def test_a_container_tells_signals_by_its_exit_code() -> None:
    assert [container_status(code) for code in (0, 1, 125, 128, 137, 143, 255)] == [
        0,
        1,
        125,
        128,
        -9,
        -15,
        255,
    ]


def test_a_reason_is_of_its_own_rank_unless_said_otherwise() -> None:
    own = reason_of("it ended", spec(rank=1, world=2), exit_code=1)
    assert (own["rank"], own["node"], own["exit_code"], own["signal"]) == (1, "spark1", 1, None)
    other = reason_of("it ended", spec(), rank=2, node="spark3")
    assert (other["rank"], other["node"]) == (2, "spark3")


def test_a_leash_that_nobody_takes_breaks() -> None:
    leash = Leash(100.0)
    assert leash.broken(100 + LEASH_FIRST) is None
    assert "never began" in str(leash.broken(100.1 + LEASH_FIRST))


def test_a_leash_breaks_by_silence_and_sooner_by_a_closed_connection() -> None:
    leash = Leash(0.0)
    leash.beat(10.0)
    assert leash.broken(10 + LEASH) is None
    assert "silent" in str(leash.broken(10.1 + LEASH))
    leash.close(11.0)
    assert leash.broken(11 + LEASH_CLOSED) is None
    assert "closed" in str(leash.broken(11.1 + LEASH_CLOSED))
    leash.beat(16.0)  # it came again
    assert leash.broken(16 + LEASH_CLOSED + 1) is None


def test_a_proven_deployment_has_no_leash() -> None:
    assert Leash(0.0, proven=True).broken(1e9) is None


@given(st.floats(0, 20), st.floats(0, 1e6))
def test_time_in_which_the_agent_did_not_run_breaks_no_leash(used: float, asleep: float) -> None:
    for leash in (Leash(0.0), Leash(0.0, last=0.0), Leash(0.0, last=0.0, closed=0.0)):
        before = leash.broken(used)
        leash.shift(asleep)
        after = leash.broken(used + asleep - 1e-6 * max(asleep, 1))
        assert before is not None or after is None
