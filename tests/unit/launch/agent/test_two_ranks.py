"""Two real agents on this machine, as on two nodes: what ends one rank ends the other, and both say why."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.agent.test_life_of_a_rank import Agents
from tests.unit.launch.agent.test_peers import free_port


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[Agents]]:
    """A node each: a state directory of its own."""
    found = []
    for name in ("spark1", "spark2"):
        (tmp_path / name).mkdir()
        found.append(Agents(tmp_path / name))
    yield found
    for agents in found:
        agents("stop", "one")
        assert agents.left() == []


def start(two: list[Agents], *scripts: str) -> None:
    """One shell script a rank; the followers first."""
    port = free_port()
    for rank in (1, 0):
        where = {"listen" if rank == 0 else "connect": f"127.0.0.1:{port}", "silence": 8.0}
        more: dict[str, Any] = {"rank": rank, "world": 2, "node": f"spark{rank + 1}", "watch": where}
        two[rank].start("sh", "-c", scripts[rank], **more)


def until_met(two: list[Agents]) -> None:
    end = time.monotonic() + 60
    while not all(one.wait("running")["peers"] for one in two):
        assert time.monotonic() < end
        time.sleep(0.05)


def reasons(two: list[Agents]) -> list[tuple[int | None, str, int | None]]:
    """Rank, node and exit code that each node names once all have ended."""
    found = [one.wait("failed")["reason"] for one in two]
    return [(reason["rank"], reason["node"], reason["exit_code"]) for reason in found]


def test_a_killed_rank_is_named_on_both(two: list[Agents]) -> None:
    start(two, "sleep 999", "echo ready; sleep 999")
    until_met(two)
    begin = time.monotonic()
    os.kill(two[1].wait("running")["main"], signal.SIGKILL)
    assert reasons(two) == [(1, "spark2", None)] * 2
    assert time.monotonic() - begin < 5
    assert {one.wait("failed")["reason"]["signal"] for one in two} == {"SIGKILL"}


def test_an_exit_code_of_three_is_another_ranks_end(two: list[Agents]) -> None:
    meet = "while [ ! -e meet ]; do sleep 0.02; done"
    start(two, f"{meet}; sleep 0.3; exit 1", f"{meet}; exit 3")
    until_met(two)
    for one in two:
        (one.home / "meet").touch()
    assert reasons(two) == [(0, "spark1", 1)] * 2


def test_a_rank_that_another_pulls_down_is_not_blamed(two: list[Agents]) -> None:
    start(
        two,
        "sleep 999",
        "while [ ! -e head ]; do sleep 0.02; done; while kill -0 $(cat head); do sleep 0.05; done",
    )
    until_met(two)
    head = two[0].wait("running")["main"]
    (two[1].home / "head").write_text(str(head))
    time.sleep(0.3)
    os.kill(head, signal.SIGKILL)
    assert reasons(two) == [(0, "spark1", None)] * 2
    assert two[1].wait("failed")["reason"]["signal"] == "SIGKILL"


def test_a_worker_that_is_killed_is_named(two: list[Agents]) -> None:
    worker = (
        "import os, time; os.execvp('python3', ['VLLM::Worker_TP1', '-c', 'import time; time.sleep(999)'])"
    )
    said = "echo Worker proc died unexpectedly '(exit code: -9)', shutting down"
    start(two, "sleep 999", f'python3 -c "{worker}" & echo $! > worker; wait $!; {said}; sleep 999')
    until_met(two)
    end = time.monotonic() + 60
    while two[1].wait("running")["processes"] != ["VLLM::Worker_TP1"]:
        assert time.monotonic() < end
        time.sleep(0.1)
    time.sleep(0.7)  # one that is seen once may be a child on its way to exec
    os.kill(int((two[1].home / "worker").read_text()), signal.SIGKILL)
    assert reasons(two) == [(1, "spark2", None)] * 2
    what = two[0].wait("failed")["reason"]["what"]
    assert what.startswith("rank 1's process VLLM::Worker_TP1 on spark2")
    assert what.endswith("was killed by SIGKILL")


def test_who_stops_one_stops_both(two: list[Agents]) -> None:
    start(two, "sleep 999", "sleep 999")
    until_met(two)
    two[0]("stop", "one")
    assert two[1].wait("stopped")["reason"] is None
