import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.errors import UsageError
from glmspark.lab.spec import LabSpec, Topology, format_rate, parse_delay, parse_loss, parse_rate


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1gbe", 10**9),
        ("10GbE", 10**10),
        ("2.5gbit", 2_500_000_000),
        ("500mbit", 5 * 10**8),
        ("1000 kbit", 10**6),
        ("400gbit", 4 * 10**11),
    ],
)
def test_rates(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text", ["", "1", "1gb", "gbit", "-1gbit", "1e3mbit", "0gbit", "999kbit", "401gbit", "١gbit"]
)
def test_what_is_no_rate(text):
    with pytest.raises(UsageError):
        parse_rate(text)


@given(st.text(max_size=20))
def test_any_text_is_a_rate_in_range_or_a_usage_error(text):
    with contextlib.suppress(UsageError):
        assert 10**6 <= parse_rate(text) <= 4 * 10**11


@given(st.integers(1, 400_000))
def test_rates_in_megabits_are_exact(megabits):
    assert parse_rate(f"{megabits}mbit") == megabits * 10**6


def test_rates_for_people():
    assert [format_rate(rate) for rate in (None, 10**10, 2_500_000_000, 5 * 10**8, 10**6)] == [
        "unlimited",
        "10 Gbit/s",
        "2.5 Gbit/s",
        "500 Mbit/s",
        "1 Mbit/s",
    ]


def test_delay_and_loss():
    assert [parse_delay(text) for text in ("200us", "1.5ms", "1 s")] == [200, 1500, 1_000_000]
    assert parse_loss("0.1%") == pytest.approx(0.001)
    for text in ("", "1", "0us", "11s", "-1ms"):
        with pytest.raises(UsageError):
            parse_delay(text)
    for text in ("", "1", "0%", "101%", "-1%"):
        with pytest.raises(UsageError):
            parse_loss(text)


@pytest.mark.parametrize(
    ("nodes", "topology", "message"),
    [
        (0, Topology.SWITCH, "1 to 8"),
        (9, Topology.SWITCH, "1 to 8"),
        (3, Topology.PAIR, "a pair is two nodes"),
        (2, Topology.RING, "at least three"),
    ],
)
def test_labs_that_cannot_be(nodes, topology, message):
    with pytest.raises(UsageError, match=message):
        LabSpec(nodes, topology)


def test_json_round_trip():
    spec = LabSpec(4, Topology.RING, 10**9, 200, 0.001)
    assert LabSpec.from_json(spec.to_json()) == spec
    assert spec.needs_netem
    assert not LabSpec(1).needs_netem
