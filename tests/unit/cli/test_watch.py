"""`glmspark watch`: what it looks like, and how it ends."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from glmspark.cli.watch_view import line, render
from glmspark.launch.monitor_view import EngineView, Gpu, Memory, NodeView, View
from glmspark.launch.record import State, home
from tests.unit.cli.commands import Glmspark
from tests.unit.launch.starts import make_start

GIB = 2**30
COMMAND = Path(sys.executable).with_name("glmspark")


def view(now: float) -> View:
    """Two nodes, of which one does not answer any more."""
    memory = Memory(total=121 * GIB, free=9 * GIB, cache=4 * GIB, weights=84 * GIB, kv=13 * GIB)
    first = NodeView(
        "spark1",
        at=now,
        rank=0,
        phase="ready",
        memory=memory,
        gpus=(Gpu(96.0, 41.0, 2411.0, 63.0),),
        fabric={"enp1s0f0np0": (1.2e9, 1.1e9), "wlP9s9": (10.0, 10.0)},
        guard="serving, memory ok",
        alerts=("memory-low: 2 GiB left",),
        restarts=1,
    )
    second = NodeView(
        "spark2", at=now - 9, rank=1, phase="ready", memory=memory, error="no answer within 10 s"
    )
    third = NodeView("spark3", error="cannot reach spark3")
    engine = EngineView(1.0, 2.0, 24.66, 460.0, 0.128, (2.31, 0.65), 17.0, 0.0)
    return View(1e9, "glm", "ready", "glm-5.2", "http://spark1:8000/v1", None, engine, (first, second, third))


@pytest.mark.parametrize("width", [1, 20, 40])
def test_a_narrow_terminal_cuts_and_fails_not(width: int) -> None:
    now = time.monotonic()
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False).print(render(view(now), width, now))
    assert max(len(row) for row in stream.getvalue().splitlines()) <= width


@pytest.mark.parametrize("width", [80, 100, 160])
def test_a_table_that_fits(width: int) -> None:
    now = time.monotonic()
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False).print(render(view(now), width, now))
    shown = stream.getvalue()
    assert max(len(row) for row in shown.splitlines()) <= width
    for text in ("glm  ready", "24.7 tokens/s, 1 running, 2 waiting, KV 12.8 %", "rank 0 ready restarted 1x"):
        assert text in shown
    for text in (
        "rank 1 ready silent 9 s",
        "spark3: cannot reach spark3",
        "no answer",
        "9 GiB",
        "memory-low",
    ):
        assert text in shown
    assert "96 % 41 W 2411 MHz 63 °C" in shown
    assert "enp1s0f0np0 9.6 Gbit/s in" in shown
    if width >= 140:
        assert "drafts 2.31 a step, 65% accepted" in shown


def test_what_is_told_nothing_of_is_a_question_mark() -> None:
    empty = View(1e9, "glm", "failed", "", "", "rank 1 ended", EngineView(), (NodeView("a"),))
    stream = io.StringIO()
    Console(file=stream, width=80).print(render(empty, 80, 1.0))
    assert "why: rank 1 ended" in stream.getvalue()
    assert "the API has told nothing yet" in stream.getvalue()
    assert "asking" in stream.getvalue()
    assert line(empty, 1.0).endswith("glm failed: the API has told nothing yet | a: not heard yet")


def test_lines() -> None:
    now = time.monotonic()
    shown = line(view(now), now)
    assert "\n" not in shown
    assert "spark1: 9 GiB free, 96 % 41 W 2411 MHz 63 °C, restarted 1x, memory-low: 2 GiB left" in shown
    assert "spark2: no answer within 10 s" in shown


def stopped(name: str) -> None:
    place = home(name)
    place.prepare()
    deployment = make_start(name, "serves")
    deployment.close(State.STOPPED)
    place.write(deployment)


def test_once(glmspark: Glmspark) -> None:
    stopped("one")
    done = glmspark("watch", "--once", "--interval", "0.5")
    assert (done.code, len(done.out.splitlines())) == (0, 1)
    assert "one stopped" in done.out
    done = glmspark("watch", "one", "--once", "--json", "--interval", "0.5")
    assert done.json["state"] == "stopped"
    assert done.json["nodes"][0]["memory"]["total"] > 0


def test_nothing_to_watch(glmspark: Glmspark) -> None:
    assert glmspark("watch", "--once").code == 2


def test_ctrl_c_on_a_terminal_leaves_it_as_it_was() -> None:
    stopped("one")
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(
        [COMMAND, "watch", "one"], stdout=follower, stderr=follower, stdin=follower, env=environment
    ) as process:
        os.close(follower)
        shown = b""
        while b"one" not in shown:
            shown += os.read(leader, 4096)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(leader, 4096):
                shown += data
        os.close(leader)
        assert process.wait(20) == 0
    assert shown.rstrip().endswith(b"\x1b[?1049l")  # the screen from before
    assert b"\x1b[?25h" in shown
    assert b"Traceback" not in shown


def test_json_lines_until_ctrl_c(monkeypatch: pytest.MonkeyPatch, glmspark: Glmspark) -> None:
    class Two:
        """A monitor that Ctrl-C interrupts at the third look."""

        def __init__(self, *_: object, every: float) -> None:
            self.looks = 0

        async def __aenter__(self) -> Two:
            return self

        async def __aexit__(self, *_: object) -> None:
            return None

        async def first(self, limit: float) -> None:
            return None

        def view(self) -> View:
            self.looks += 1
            if self.looks > 2:
                raise KeyboardInterrupt
            return view(time.monotonic())

    stopped("one")
    monkeypatch.setattr("glmspark.launch.monitor.Monitor", Two)
    done = glmspark("watch", "one", "--json", "--interval", "0.5")
    assert done.code == 0
    values = [json.loads(row) for row in done.out.splitlines()]
    assert [one["name"] for one in values] == ["glm", "glm"]
    assert values[0]["nodes"][0]["fabric"]["enp1s0f0np0"] == [1.2e9, 1.1e9]
    assert values[0]["nodes"][1]["age"] >= 9
