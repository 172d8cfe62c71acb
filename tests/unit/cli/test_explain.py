"""`glmspark explain`: what people and programs see."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from glmspark.launch.record import Home, Reason, State, Verdict, home
from tests.unit.cli.commands import Glmspark
from tests.unit.launch.starts import make_start

RECORDED = Path(__file__).parents[1] / "launch" / "recorded"


def failed(
    name: str, *, since: float, reason: Reason | None = None, verdicts: list[Verdict] | None = None
) -> Home:
    """A deployment of which the record says that it failed."""
    place = home(name)
    place.prepare()
    deployment = make_start(name, "serves", "serves")
    deployment.reason, deployment.verdicts = reason, verdicts or []
    deployment.close(State.FAILED, at=since)
    place.write(deployment)
    return place


def test_a_log_with_a_known_cause(glmspark: Glmspark) -> None:
    done = glmspark("explain", str(RECORDED / "torchvision-of-another-torch.log"))
    assert done.code == 0
    assert "1. torchvision is made for another torch  almost certain" in done.out
    assert "pip uninstall torchvision" in done.out
    assert "torchvision-of-another-torch.log:45: RuntimeError" in done.out


def test_a_log_in_which_nothing_shows(glmspark: Glmspark, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("Traceback (most recent call last):\nKeyError: [b]\n")
    done = glmspark("explain", str(tmp_path / "a.log"))
    assert done.code == 3
    assert "No known cause shows." in done.out
    assert "KeyError: [b]" in done.out


def test_a_log_has_no_say_over_the_terminal(glmspark: Glmspark, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(
        "Traceback (most recent call last):\nKeyError: \x1b]52;c;cm0=\x07 \x9b2J\n"
    )
    done = glmspark("explain", str(tmp_path / "a.log"))
    assert "KeyError: \N{REPLACEMENT CHARACTER}]52;c" in done.out
    assert not {"\x1b", "\x07", "\x9b"} & set(done.out)


def test_messages_that_are_never_the_cause_lead_to_the_first_error(glmspark: Glmspark) -> None:
    done = glmspark("explain", str(RECORDED / "tp2-wrong-shape-rank-0.log"))
    assert done.code == 0
    assert "start (0) + length (128) exceeds dimension size (64)" in done.out


def test_json(glmspark: Glmspark) -> None:
    done = glmspark("explain", str(RECORDED / "torchvision-of-another-torch.log"), "--json")
    value = json.loads(done.out)
    assert value["findings"][0]["name"] == "torchvision-of-another-torch"
    assert value["findings"][0]["words"] == "almost certain"


def test_without_an_argument_it_is_the_one_that_failed_last(glmspark: Glmspark) -> None:
    done = glmspark("explain")
    assert (done.code, "no deployment failed" in done.err) == (2, True)
    now = time.time()
    canary = Verdict(name="sum", probe="answer", passed=False, seconds=1.0, evidence="'5'")
    failed("older", since=now - 60, verdicts=[canary])
    place = failed("newer", since=now, reason=Reason(what="rank 0 ended", signal="SIGKILL", at=now))
    place.rank_log(1).write_text("OSError: [Errno 28] No space left on device\n")
    done = glmspark("explain")
    assert done.out.startswith("newer (failed, ")
    assert "rank-1.log:1: OSError: [Errno 28]" in done.out
    assert "A process was killed, and not by the kernel" in done.out
    done = glmspark("explain", "older", "--json")
    assert {one["name"] for one in json.loads(done.out)["findings"]} >= {"wrong-weights", "wrong-kernel"}


@pytest.mark.parametrize("words", [("nowhere.log",), ("a.log", "--live")])
def test_what_cannot_be_explained(glmspark: Glmspark, words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("x")
    done = glmspark("explain", *(str(tmp_path / word) if word.endswith(".log") else word for word in words))
    assert (done.code, done.out) == (2, "")
    assert "error: " in done.err
