"""Known failures are recognised in a rank's first error, on recorded logs."""

from __future__ import annotations

from pathlib import Path

from glmspark.launch import reasons
from glmspark.launch.faults import FirstError
from glmspark.launch.record import RankRecord, Reason

RECORDED = Path(__file__).with_name("recorded")


def ended(log: str) -> Reason:
    """The reason of a rank that ended with exit code 1."""
    fault = FirstError()
    for line in (RECORDED / log).read_text().split("\n"):
        fault.feed(line)
    rank = RankRecord(rank=1, node="here", argv=["python"], env={}, log="/logs/rank-1.log")
    return reasons.ended(rank, fault, pid=7, title="", status=1 << 8, oom_kills=0)


def test_a_torchvision_made_for_another_torch() -> None:
    reason = ended("torchvision-of-another-torch.log")
    assert reason.symptom == "torchvision-of-another-torch"
    assert "pip uninstall torchvision" in (reason.next or "")
    assert "glmspark explain" in (reason.next or "")


def test_an_unknown_error_leads_to_the_log() -> None:
    reason = ended("tp2-wrong-shape-rank-1.log")
    assert (reason.next, reason.symptom) == ("see /logs/rank-1.log", None)


def test_a_rank_that_was_killed_shows_no_lines_of_other_things() -> None:
    """Its last lines are whatever it was at: what it said of an error counts, the rest would mislead."""
    rank = RankRecord(rank=1, node="spark2", argv=["x"], env={}, log="/tmp/rank-1.log")
    fault = FirstError()
    fault.feed("INFO 01-02 03:04:05 [core.py:1] init engine took 3.4 seconds")
    killed = reasons.ended(rank, fault, pid=7, title="", status=9, oom_kills=0)
    assert (killed.signal, killed.seen) == ("SIGKILL", None)
    fault.feed("ERROR 01-02 03:04:06 [m.py:315] Worker proc VllmWorker-1 died unexpectedly (exit code: -9)")
    said = reasons.ended(rank, fault, pid=7, title="", status=9, oom_kills=0)
    assert said.seen == "Worker proc VllmWorker-1 died unexpectedly (exit code: -9)"
    by_itself = reasons.ended(rank, FirstError(), pid=7, title="", status=1 << 8, oom_kills=0)
    assert by_itself.signal is None


def test_what_was_warned_of_before_counts_where_the_error_itself_says_little() -> None:
    fault = FirstError()
    fault.feed(
        "spark1:7:9 [0] NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev a:1"
    )
    fault.feed("Traceback (most recent call last):")
    fault.feed("RuntimeError: NCCL error: unhandled system error")
    rank = RankRecord(rank=1, node="spark2", argv=["x"], env={}, log="/tmp/rank-1.log")
    reason = reasons.ended(rank, fault, pid=7, title="", status=1 << 8, oom_kills=0)
    assert reason.symptom == "nodes-not-all-linked"
    assert reason.seen == "RuntimeError: NCCL error: unhandled system error"


def test_who_killed_a_rank_is_told_by_the_kernel_s_counter() -> None:
    rank = RankRecord(rank=1, node="spark2", argv=["x"], env={}, log="/tmp/rank-1.log")
    for kills, name in ((0, "killed-from-outside"), (2, "oom-killed")):
        reason = reasons.ended(rank, FirstError(), pid=7, title="", status=9, oom_kills=kills)
        assert reason.symptom == name
