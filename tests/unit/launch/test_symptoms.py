"""Known failures are recognised in a rank's first error, on recorded logs."""

from __future__ import annotations

from pathlib import Path

from glmspark.launch import reasons
from glmspark.launch.faults import FirstError
from glmspark.launch.record import RankRecord
from glmspark.launch.symptoms import remedy_of

RECORDED = Path(__file__).with_name("recorded")


def ended(log: str) -> str | None:
    """What the reason of a rank that ended with exit code 1 says to do."""
    fault = FirstError()
    for line in (RECORDED / log).read_text().split("\n"):
        fault.feed(line)
    rank = RankRecord(rank=1, node="here", argv=["python"], env={}, log="/logs/rank-1.log")
    return reasons.ended(rank, fault, pid=7, title="", status=1 << 8, oom_kills=0).next


def test_a_torchvision_made_for_another_torch() -> None:
    advice = ended("torchvision-of-another-torch.log")
    assert advice is not None
    assert "pip uninstall torchvision" in advice


def test_an_unknown_error_leads_to_the_log() -> None:
    assert ended("tp2-wrong-shape-rank-1.log") == "see /logs/rank-1.log"
    assert remedy_of(None) is None


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
