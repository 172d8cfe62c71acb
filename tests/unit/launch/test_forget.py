"""A deployment is forgotten when nothing of it runs, also where its nodes answer no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from glmspark.config.cluster import parse_cluster
from glmspark.launch import forget as forgetting
from glmspark.launch import lock as locks
from glmspark.launch.agent_archive import AGENT
from glmspark.launch.command import free_port
from glmspark.launch.record import ClusterSite, State, home
from tests.unit.cli.commands import Glmspark
from tests.unit.compiled import compiled
from tests.unit.launch.agent.specs import spec_data
from tests.unit.launch.starts import make_start


@pytest.fixture
def glmspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Glmspark:
    """The command line, with a state directory of the test's own."""
    monkeypatch.setenv("GLMSPARK_STATE_DIR", str(tmp_path / "state"))
    return Glmspark(monkeypatch, capsys)


def record(name: str, state: State, *, on_nodes: bool) -> Path:
    """A deployment's directory. Where its nodes were, nobody listens."""
    port = free_port("127.0.0.1")
    start = make_start(name, "serves", "serves")
    nodes = "".join(
        f"  - {{name: spark{number}, address: 127.0.0.{number}, port: {port}, "
        f"fabric: [{{interface: fab0, address: 10.0.0.{number}/24}}]}}\n"
        for number in (1, 2)
    )
    cluster = parse_cluster(f"cluster: 1\nruntime: {{image: 'i:1'}}\nnodes:\n{nodes}".encode(), "c.yaml")
    if on_nodes:
        start.cluster = ClusterSite(cluster=cluster.model_dump(mode="json"), directories={})
        for rank in start.ranks:
            rank.node = f"spark{rank.rank + 1}"
    start.turn(state)
    where = home(name)
    where.prepare()
    where.write(start)
    where.write_key("a-key")
    where.rank_log(0).write_text("a log\n")
    return where.path


def test_one_whose_nodes_are_gone(glmspark: Glmspark) -> None:
    path = record("gone", State.READY, on_nodes=True)
    assert "`glmspark clean gone --forget`" in glmspark("down", "gone").err
    would = glmspark("clean", "gone", "--forget", "--dry-run")
    assert (would.code, path.exists()) == (0, True)
    assert "would forget gone: its record and logs on this machine" in would.out
    done = glmspark("clean", "gone", "--forget")
    assert (done.code, path.exists()) == (0, False)
    assert "forgot gone: its record and logs on this machine" in done.out
    assert "spark1: could not be asked" in done.out
    assert "gone" not in glmspark("status").out
    assert glmspark("clean", "gone", "--forget").code == 2


def test_one_of_this_machine(glmspark: Glmspark) -> None:
    path = record("here", State.FAILED, on_nodes=False)
    assert glmspark("clean", "here", "--forget", "--json").json["this machine"]["forgotten"] == ["here"]
    assert not path.exists()


def test_one_that_runs_is_kept(glmspark: Glmspark) -> None:
    path = record("runs", State.READY, on_nodes=False)
    lock = locks.take(path / "lock")
    assert lock is not None
    with lock:
        done = glmspark("clean", "runs", "--forget")
    assert (done.code, path.exists()) == (2, True)
    assert "`glmspark down runs` first" in done.err


def test_one_that_runs_on_a_node_is_kept(
    glmspark: Glmspark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine stands for a node that answers; the other one is gone."""
    path = record("one", State.READY, on_nodes=True)
    known = forgetting.addresses
    monkeypatch.setattr(forgetting, "addresses", lambda cluster: {**known(cluster), "spark1": None})
    agent = tmp_path / "agent.pyz"
    agent.write_bytes(compiled(AGENT.data))

    def run(*words: str, stdin: str = "") -> None:
        argv = [sys.executable, "-I", agent, *words]
        subprocess.run(argv, input=stdin, text=True, check=True, capture_output=True, env=os.environ)

    run("start", "one", stdin=json.dumps(spec_data(scratch=str(tmp_path / "glmspark-scratch"))))
    try:
        done = glmspark("clean", "one", "--forget")
        assert (done.code, path.exists()) == (2, True)
        assert "one runs on spark1" in done.err
    finally:
        run("stop", "one")
    assert glmspark("clean", "one", "--forget").code == 0
    assert not path.exists()


@pytest.mark.parametrize("words", [("--forget",), ("some", "--forget", "--cluster", "c.yaml")])
def test_wrong_use(glmspark: Glmspark, words: tuple[str, ...]) -> None:
    assert glmspark("clean", *words).code == 2
