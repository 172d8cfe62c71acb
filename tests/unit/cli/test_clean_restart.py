"""clean and restart on this machine, with pretended ranks."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from glmspark.launch import restart
from glmspark.launch.prepare import Wanted
from glmspark.launch.record import State, home
from glmspark.launch.up import Outcome
from glmspark.nodes import processes
from tests.unit.cli.commands import Glmspark
from tests.unit.launch.starts import launch, make_start, wait_free


def test_nothing_to_clean_and_nothing_to_restart(glmspark: Glmspark, state: Path) -> None:
    clean = glmspark("clean")
    assert (clean.code, clean.out) == (0, "there is nothing to clean\n")
    assert glmspark("clean", "other").code == 2
    assert glmspark("restart").code == 2
    assert glmspark("restart", "other").code == 2
    assert glmspark("clean", "--cluster", "/no/such/file").code == 1
    assert not state.exists()


def test_clean_takes_what_is_left_and_leaves_what_runs(glmspark: Glmspark) -> None:
    left, runs = launch(make_start("left", "serves", "serves")), launch(make_start("runs", "serves"))
    assert left.supervisor is not None
    os.kill(left.supervisor.pid, signal.SIGSTOP)  # or it forks another reaper for the one that is killed
    reapers = [
        stat.pid
        for stat in processes.descendants([left.supervisor.pid], processes.all_stats())
        if "glmspark.launch.supervisor" in processes.command(stat.pid)
    ]
    for pid in (*reapers, left.supervisor.pid):  # who would clean up is killed with it
        os.kill(pid, signal.SIGKILL)
    wait_free(home("left"))
    end = time.monotonic() + 15.0  # on a busy machine the ranks' own end takes a moment
    ranks = [rank.process for rank in left.ranks if rank.process is not None]
    assert len(ranks) == 2
    while any(map(processes.is_alive, ranks)):
        assert time.monotonic() < end
        time.sleep(0.05)
    # Left are the workers: ranks end with their supervisor.
    end = time.monotonic() + 30.0
    while True:
        would = glmspark("clean", "--dry-run", "--json").json["this machine"]
        assert (would["kept"], would["dry_run"], would["stubborn"]) == (["runs"], True, [])
        if len(would["processes"]) == 2:
            break
        assert time.monotonic() < end, would
        time.sleep(0.05)
    assert str(left.scratch) in would["files"]
    assert "would remove process" in glmspark("clean", "--dry-run").out
    done = glmspark("clean", "left")
    assert done.code == 0
    assert done.out.count("removed process") == 2
    assert glmspark("clean").out == "there is nothing to clean\n"
    record = home("left").read()
    assert record is not None
    assert record.state is State.FAILED
    assert record.reason is not None
    assert "`glmspark restart left`" in str(record.reason.next)
    assert glmspark("status", "runs").code == 0
    assert runs.supervisor is not None
    assert processes.is_alive(runs.supervisor.identity)


def test_restart_stops_and_brings_up_the_same(glmspark: Glmspark, monkeypatch: pytest.MonkeyPatch) -> None:
    first = launch(make_start("again", "serves", "serves"), key=None)
    seen: list[Wanted] = []

    def bring_up(wanted: Wanted, observe: object) -> Outcome:
        """What `up` does when the one that ran has been stopped."""
        seen.append(wanted)
        assert wanted.home.read().state is State.STOPPED  # type: ignore[union-attr]
        return Outcome(make_start("again", "serves", "serves"), already=False, cleaned=None)

    monkeypatch.setattr(restart, "bring_up", bring_up)
    done = glmspark("restart", "again")
    assert done.code == 0, done.err
    assert "again is ready again after" in done.out
    (wanted,) = seen
    assert (wanted.tp, wanted.pp, wanted.request.port) == (2, 1, first.endpoint.port)
    assert wanted.recipe_data()["name"] == "pretend"
    assert wanted.request.name == "again"


def test_restart_needs_the_key_it_had(glmspark: Glmspark, monkeypatch: pytest.MonkeyPatch) -> None:
    start = make_start("locked", "serves")
    start.endpoint.needs_key = True
    start.turn(State.STOPPED)
    home("locked").prepare()
    home("locked").write(start)  # as `down` leaves it: the key went with what asked for it
    refused = glmspark("restart", "locked")
    assert refused.code == 2
    assert "asks for an API key, which is not known here" in refused.err
    seen: list[str | None] = []

    def bring_up(wanted: Wanted, observe: object) -> Outcome:
        seen.append(wanted.request.key)
        return Outcome(start, already=False, cleaned=None)

    monkeypatch.setattr(restart, "bring_up", bring_up)
    monkeypatch.setenv("GLMSPARK_API_KEY", "secret")
    assert glmspark("restart", "locked", "--json").json["name"] == "locked"
    assert seen == ["secret"]
