"""Whoever waits for an answer sees that he waits, and after long what to do."""

from __future__ import annotations

import io
import time

from glmspark.cli.patience import Patience


class Screen(io.StringIO):
    """A terminal, or a file."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def until(screen: Screen, text: str) -> None:
    end = time.monotonic() + 5
    while text not in screen.getvalue():
        assert time.monotonic() < end, screen.getvalue()
        time.sleep(0.01)


def test_on_a_terminal_waiting_is_shown_and_wiped_away() -> None:
    screen = Screen(terminal=True)
    with Patience(screen, after=0.05, long=60) as patience:
        until(screen, "waiting for the first token: 0 s")
        patience.sign()
        before = screen.getvalue()
        assert before.endswith("\r\x1b[K")
        time.sleep(0.2)
        assert screen.getvalue() == before  # within an answer nothing is written over
    assert "no token" not in screen.getvalue()


def test_a_long_silence_is_told_once_with_what_to_do() -> None:
    for terminal in (True, False):
        screen = Screen(terminal=terminal)
        with Patience(screen, after=0.05, long=0.1):
            until(screen, "no token for 0 s: `glmspark status` says whether every rank lives\n")
            time.sleep(0.2)
        assert screen.getvalue().count("no token") == 1


def test_a_silence_within_an_answer_is_told_too_and_again_after_the_next() -> None:
    screen = Screen(terminal=False)
    with Patience(screen, after=0.05, long=0.1) as patience:
        patience.sign()
        until(screen, "no token")
        patience.sign()
        end = time.monotonic() + 5
        while screen.getvalue().count("no token") < 2:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_what_answers_at_once_shows_nothing() -> None:
    screen = Screen(terminal=True)
    with Patience(screen) as patience:
        patience.sign()
    assert screen.getvalue() == ""
