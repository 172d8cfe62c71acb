"""Measured beside predicted speed: the verdict, and the likeliest cause."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.plan.compare import Seen, compare
from glmspark.plan.speed import Link, Run, predict
from tests.unit.plan.test_speed import run

PLANNED: Run = run(method="mtp", drafts=2)
USUAL = predict(PLANNED, drafter="mtp", text="prose")


def said(**changes):
    return compare(PLANNED, "mtp", Seen(**{"speed": USUAL.decode.value, "streams": 1.0, **changes}))


def test_as_predicted():
    found = said()
    assert (found.verdict, found.cause) == ("as predicted", None)
    assert found.low < found.measured < found.high
    assert said(speed=500.0).verdict == "faster"
    assert said(tokens=2.1).high - said(tokens=2.1).low < found.high - found.low


@pytest.mark.parametrize(
    ("seen", "cause"),
    [
        ({"network": "Socket"}, "NCCL uses sockets where RDMA was planned"),
        ({"network": "IB", "clock": 721.0}, "a GPU's clock is low: 721 MHz"),
        ({"network": "IB", "clock": 2200.0, "eager": True}, "it runs eagerly where CUDA graphs were planned"),
        (
            {"network": "IB", "clock": 2200.0, "eager": False, "tokens": 1.1},
            "few drafted tokens are accepted",
        ),
    ],
)
def test_what_was_seen_is_the_cause(seen, cause):
    found = said(speed=3.0, **seen)
    assert (found.verdict, found.cause, found.proven) == ("slower", cause, True)
    assert found.next


def test_without_evidence_the_cause_that_explains_the_speed_is_likely():
    slow = predict(replace(PLANNED, link=Link("tcp", 200.0)), drafter="mtp", text="mixed").decode.value
    found = said(speed=slow)
    assert (found.verdict, found.proven) == ("slower", False)
    assert found.cause is not None
    assert "sockets" in found.cause
    nothing = said(speed=0.1)
    assert nothing.cause is None
    assert nothing.to_json()["verdict"] == "slower"


@given(
    st.floats(0.01, 1e4),
    st.floats(0, 64),
    st.none() | st.floats(1, 3),
    st.none() | st.text(max_size=8),
    st.none() | st.booleans(),
    st.none() | st.floats(1, 3000),
)
def test_anything_seen_has_a_verdict(speed, streams, tokens, network, eager, clock):
    found = compare(PLANNED, "mtp", Seen(speed, streams, tokens, network, eager, clock))
    assert found.verdict in ("as predicted", "slower", "faster")
    assert (found.cause is None) == (found.next is None)
