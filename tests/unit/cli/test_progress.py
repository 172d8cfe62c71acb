"""What is shown while a deployment starts."""

from __future__ import annotations

import io
import re

import pytest

from glmspark.cli.console import wants_colour
from glmspark.cli.progress import Display, LiveDisplay, PlainDisplay, make_display
from glmspark.launch.record import State, Verdict
from tests.unit.launch.starts import make_start

PASS = Verdict(name="sum", probe="answer", passed=True, seconds=0.12, evidence="'4'")
FAIL = Verdict(
    name="copy", probe="answer", passed=False, seconds=1.0, evidence="'k8'", causes=["bad weights"]
)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def show(display: Display) -> None:
    """A start with two ranks, two canaries, one of them wrong."""
    start = make_start("pair", "serves", "serves")
    with display:
        display.update(start, [])
        for rank, phase in ((0, "importing vLLM"), (1, "loading weights"), (1, "loading weights")):
            start.ranks[rank].phase, start.ranks[rank].since = phase, start.created + 1.25
            display.update(start, [])
        start.proving = True
        display.update(start, [PASS])
        display.update(start, [PASS, FAIL])
        start.turn(State.FAILED)
        display.update(start, [PASS, FAIL])
        display.finish()


def test_plain_lines_say_each_thing_once() -> None:
    stream = io.StringIO()
    show(make_display("pair", stream))
    lines = [re.sub(r"^ *[\d.]+ s  ", "", line) for line in stream.getvalue().splitlines()]
    assert lines[0].startswith("starting pair: TP2 PP1, http://127.0.0.1:")
    assert lines[1:] == [
        "rank 0: importing vLLM",
        "rank 1: loading weights",
        "asking the canaries",
        "pass  sum: '4' (0.1 s)",
        "FAIL  copy: 'k8' (1.0 s)",
        " " * 17 + "likely: bad weights",
    ]
    assert "    1.2 s  rank 0: importing vLLM" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_the_live_table_ends_with_all_of_it() -> None:
    stream = Terminal()
    show(LiveDisplay("pair", stream))
    last = stream.getvalue()[-2000:]
    for text in ("pair", "rank 0", "importing vLLM", "loading weights", "asking the canaries"):
        assert text in last
    assert "pass  sum: '4'" in last
    assert "likely: bad weights" in last


def test_which_display_suits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_display("x", io.StringIO()), PlainDisplay)
    assert isinstance(make_display("x", Terminal()), LiveDisplay)
    assert wants_colour(Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert isinstance(make_display("x", Terminal()), PlainDisplay)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_display("x", Terminal()), PlainDisplay)
