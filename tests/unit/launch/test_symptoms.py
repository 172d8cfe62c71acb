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
