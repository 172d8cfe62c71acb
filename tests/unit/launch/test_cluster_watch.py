"""A cluster's start as its ranks tell it."""

from __future__ import annotations

from typing import Any

from glmspark.launch.cluster_watch import ClusterWatch
from glmspark.launch.record import ClusterSite, Limits
from tests.unit.launch.starts import make_start

SERVING = "(APIServer pid=1) INFO:     Application startup complete."
JOINING = (
    "INFO 11-30 12:00:00 [parallel_state.py:1] world_size=2 rank=0 local_rank=0 distributed_init_method=x"
)
LOADING = "INFO 11-30 12:00:00 [model.py:1] Starting to load model /m..."


def watch(limits: Limits | None = None, ranks: int = 3) -> ClusterWatch:
    deployment = make_start("toy", *["serve"] * ranks, limits=limits)
    for rank in deployment.ranks:
        rank.node = f"spark{rank.rank + 1}"
    deployment.cluster = ClusterSite(cluster={}, directories={})
    return ClusterWatch(deployment, began=0.0)


def failed(rank: int, what: str, *, named: int | None = None, at: float = 1.0) -> dict[str, Any]:
    """A node's state after its rank, or the one named, had ended."""
    culprit = rank if named is None else named
    reason = {
        "what": what,
        "rank": culprit,
        "node": f"spark{culprit + 1}",
        "seen": None,
        "next": None,
        "at": at,
    }
    return {"state": "failed", "reason": reason, "processes": []}


def test_phases_come_from_the_ranks_lines_and_serving_from_the_head_s() -> None:
    one = watch()
    one.state("spark1", {"state": "running", "processes": ["VLLM::Worker_TP0"]}, at=5.0)
    one.log("spark2", LOADING, at=6.0)
    assert [rank.phase for rank in one.deployment.ranks] == [
        "starting Python",
        "loading weights",
        "not started",
    ]
    assert one.deployment.ranks[1].since == 6.0
    assert not one.serving
    one.log("spark1", SERVING, at=7.0)
    assert one.serving
    assert [rank.phase for rank in one.deployment.ranks] == ["serving", *["following rank 0"] * 2]
    assert one.census()[0] == ["VLLM::Worker_TP0"]


def test_the_cause_is_the_rank_that_says_it_of_itself() -> None:
    one = watch()
    one.state("spark1", failed(0, "stopped because rank 1 ended", named=1, at=1.0), at=1.0)
    assert one.failing
    assert not one.all_told
    one.state("spark3", failed(2, "stopped because rank 1 ended", named=1, at=1.1), at=1.1)
    one.log("spark2", "Traceback (most recent call last):", at=1.0)
    one.log("spark2", '  File "m.py", line 1, in f', at=1.0)
    one.log("spark2", "ValueError: no such weight", at=1.0)
    one.state("spark2", failed(1, "rank 1 ended with exit code 1", at=1.2), at=1.2)
    assert one.all_told
    reason = one.reason(at=2.0)
    assert (reason.what, reason.rank, reason.node) == ("rank 1 ended with exit code 1", 1, "spark2")
    assert "no such weight" in str(reason.seen)
    assert 2 not in one.census()


def test_a_node_that_is_gone_is_named_by_those_that_are_left() -> None:
    one = watch()
    one.lost("spark2", "the connection was lost")
    one.state("spark1", failed(0, "the agent of rank 1 on spark2 was silent for 8 s", named=1), at=1.0)
    one.state("spark3", failed(2, "the agent of rank 1 on spark2 was silent for 8 s", named=1), at=1.0)
    assert one.all_told
    assert one.reason(at=2.0).node == "spark2"


def test_a_lost_node_alone_is_a_reason_too() -> None:
    one = watch()
    one.lost("spark3", "the connection was lost")
    assert not one.failing
    one.state("spark1", {"state": "stopped", "reason": None}, at=1.0)
    reason = one.reason(at=2.0)
    assert (reason.node, reason.seen) == ("spark3", "the connection was lost")
    one.back("spark3")
    assert one.reason(at=2.0).node == "spark1"


def test_ranks_that_do_not_find_one_another() -> None:
    one = watch(Limits(start=100, join=10), ranks=2)
    one.log("spark1", JOINING, at=1.0)
    assert one.late(now=50.0) is None  # the other is not even there
    one.log("spark2", JOINING, at=1.0)
    assert one.late(now=60.0) is None
    one.log("spark1", LOADING, at=1.0)
    reason = one.late(now=71.0)
    assert reason is not None
    assert (reason.rank, reason.node) == (1, "spark2")
    assert "did not find one another within 10 s" in reason.what


def test_the_slowest_rank_is_the_one_that_is_late() -> None:
    one = watch(Limits(start=100, join=1000))
    for node in ("spark1", "spark3"):
        one.log(node, LOADING, at=1.0)
    assert one.late(now=100.0) is None
    reason = one.late(now=100.5)
    assert reason is not None
    assert (reason.rank, reason.node) == (1, "spark2")
