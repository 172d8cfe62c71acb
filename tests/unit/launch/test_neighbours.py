"""Ports of other deployments on the head's node."""

from __future__ import annotations

from typing import Any

import pytest

from glmspark.errors import UsageError
from glmspark.launch.neighbours import Neighbour, neighbours_of, refuse_taken, taken_ports

RECORD: dict[str, Any] = {
    "name": "other",
    "endpoint": {"host": "127.0.0.1", "port": 8000},
    "plan": {"ports": {"master": 29500, "watch": 29600, "engine": 0}},
}
OTHER = Neighbour("other", "127.0.0.1", 8000, (29500, 29600))


def state(**changes: Any) -> dict[str, Any]:
    return {"alive": True, "rank": 0, "state": "starting", "record": RECORD, **changes}


def test_only_heads_that_live_count() -> None:
    assert neighbours_of([state()], "toy") == (OTHER,)
    for none in (state(alive=False), state(rank=1), state(record=None), state(record={"name": "x"})):
        assert neighbours_of([none], "toy") == ()
    assert neighbours_of([state()], "other") == ()


@pytest.mark.parametrize(
    ("host", "port", "free"),
    [
        ("127.0.0.1", 8000, False),
        ("localhost", 8000, False),
        ("0.0.0.0", 8000, False),
        ("127.0.0.1", 8001, True),
        ("10.0.0.1", 8000, True),
        ("spark1", 8000, True),
    ],
)
def test_an_api_that_another_will_open(host: str, port: int, free: bool) -> None:
    if free:
        refuse_taken([OTHER], host, port, node="spark1")
        return
    with pytest.raises(UsageError, match="port 8000 is taken by the deployment other") as caught:
        refuse_taken([OTHER], host, port, node="spark1")
    assert caught.value.host == "spark1"


def test_the_ports_between_ranks_are_left_to_them() -> None:
    assert [(one.port, one.covers("10.0.0.1")) for one in taken_ports([OTHER])] == [
        (29500, True),
        (29600, True),
    ]
