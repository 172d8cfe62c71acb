"""status, logs, restart, clean and down of a deployment on nodes: by name, and from another machine."""

from __future__ import annotations

import asyncio
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from glmspark.launch.cluster_start import Starter
from glmspark.launch.record import ClusterSite, Deployment, Endpoint, Home, Limits, RankRecord, Verdict
from glmspark.nodes import processes
from tests.lab import ranks_on_nodes
from tests.lab.ranks_on_nodes import HOME, NODES
from tests.lab.virtual import GLMSPARK, VirtualSparks
from tests.unit.cli.commands import Done, Glmspark
from tests.unit.launch.starts import PRETEND, RECIPE

PORT = 18123


class Quiet:
    """Watches a start without a word."""

    def update(self, deployment: Deployment, verdicts: list[Verdict]) -> None:
        return

    def note(self, text: str) -> None:
        return


def pretended(lab: VirtualSparks, name: str) -> tuple[Deployment, ranks_on_nodes.Deployment]:
    """The record of a deployment of pretended ranks, and the ranks themselves."""
    serves = "print(SERVING"  # later than its worker is seen, as always with real ones
    source = PRETEND.read_text().replace(serves, f"time.sleep(2); {serves}")
    words = ("python3", "-u", "-c", source, "RANK", "serves", str(PORT))
    ranks = ranks_on_nodes.Deployment(lab, name, argv=words)
    specs = ranks.specs()
    now = time.time()
    deployment = Deployment(
        id=specs["spark1"]["id"],
        name=name,
        boot_id=processes.boot_id(),
        created=now,
        since=now,
        recipe=RECIPE,
        plan={"tp": 3, "pp": 1},
        endpoint=Endpoint(host="127.0.0.1", port=PORT, url=f"http://127.0.0.1:{PORT}/v1", model="m"),
        limits=Limits(start=60, join=60, prove=60),
        scratch=specs["spark1"]["scratch"],
        ranks=[
            RankRecord(rank=rank, node=node, argv=[], env={}, log=f"{HOME}/{name}/logs/rank-{rank}.log")
            for rank, node in enumerate(NODES)
        ],
        cluster=ClusterSite(
            cluster=lab.cluster.model_dump(mode="json"),
            directories=dict.fromkeys(NODES, f"{HOME}/{name}"),
        ),
    )
    return deployment, replace(ranks, record=deployment.model_dump(mode="json"))


async def bring_up(lab: VirtualSparks, name: str) -> ranks_on_nodes.Deployment:
    """Start and prove it, with its record on this machine, as `glmspark up` does."""
    deployment, ranks = pretended(lab, name)
    home = Home(lab.state / "deployments" / name)
    home.prepare()
    home.write(deployment)
    async with ranks.fleet() as agents:
        specs = ranks.specs()
        for spec in specs.values():
            spec["id"] = deployment.id
        starter = Starter(deployment, agents, agents.fleet, Quiet(), home=home)
        await starter.run(lambda: agents.start(specs))
    return ranks


def segments(lab: VirtualSparks, node: str) -> set[str]:
    return set(lab.shell(node, "ls", "/dev/shm").split())


class Machine:
    """A machine to type commands on: one with its own records. The commands run in the test's process."""

    def __init__(self, state: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._state, self._patch = state, patch
        self._glmspark = Glmspark(patch, capsys)

    def __call__(self, *words: str, code: int = 0) -> Done:
        self._patch.setenv("GLMSPARK_STATE_DIR", str(self._state))
        done = self._glmspark(*words)
        assert done.code == code, f"{words}: {done}"
        return done


def test_commands_from_here_and_from_elsewhere(
    lab: VirtualSparks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = Machine(lab.state, monkeypatch, capsys)
    elsewhere = Machine(tmp_path / "elsewhere", monkeypatch, capsys)
    file = ["--cluster", str(lab.home.cluster_file)]
    before = {node: segments(lab, node) for node in NODES}
    one = asyncio.run(bring_up(lab, "small"))

    for status in (here("status", "small", "--json"), elsewhere("status", "small", *file, "--json")):
        (shown,) = status.json
        assert (shown["state"], shown["model"]) == ("ready", "m")
        assert [(rank["node"], rank["alive"]) for rank in shown["ranks"]] == [(n, True) for n in NODES]
        assert [rank["processes"] for rank in shown["ranks"]] == [[f"VLLM::Worker_TP{r}"] for r in range(3)]
        assert all(rank["memory"] > 1 << 20 for rank in shown["ranks"])
        assert shown["load"] is not None  # asked through SSH: it listens on its node's loopback
    table = elsewhere("status", "small", *file).out
    assert "small  ready for" in table
    assert "following rank 0" in table

    lines = here("logs", "small", "-n", "4").out.splitlines()
    assert len(lines) == 12
    assert {line.split("  ")[0] for line in lines} == {f"rank {r} {n}" for r, n in enumerate(NODES)}
    assert "Loading weights took" in elsewhere("logs", "small", *file, "--rank", "1", "-n", "1").out
    data = elsewhere("logs", "small", *file, "-n", "1", "--json").json
    assert [entry["node"] for entry in data] == list(NODES)
    elsewhere("logs", "small", *file, "--rank", "7", code=2)

    with subprocess.Popen(
        [*GLMSPARK, "logs", "-f", "-n", "1", "small"], env=lab.environment, stdout=-1, stderr=-1, text=True
    ) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline().startswith("rank ")
        printed = lab.shell("spark2", "cat", f"{HOME}/small/logs/rank-1.log").splitlines()
        pid = next(line.split()[1] for line in printed if line.startswith("worker "))
        lab.shell("spark2", "kill", "-9", pid, root=True)  # its main process lives on
        assert "small does not run any more" in follower.communicate(timeout=20)[1]
    assert "why:  rank 1's process VLLM::Worker_TP1 on spark2" in here("status", "small", code=1).out
    assert one.traces() == {}

    assert elsewhere("restart", "small", *file, "--json").json["state"] == "ready"
    assert elsewhere("clean", "small", *file, "--dry-run").out == "there is nothing to clean\n"
    (stopped,) = here("down", "small", "--json").json
    assert (stopped["name"], stopped["ending"]) == ("small", "stopped")
    assert one.traces() == {}
    assert {node: segments(lab, node) for node in NODES} == before
    for words in (["small"], []):  # asked of the nodes, and from the record
        assert here("status", *words, "--json", code=3).json[0]["state"] == "stopped"
    assert "nothing kept of small" in elsewhere("restart", "small", *file, code=2).err
    assert "there is nothing to stop" in elsewhere("down", *file).out


def test_nodes_that_cannot_be_reached_are_named(
    lab: VirtualSparks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = lab.home.cluster_file.read_text()
    for number, node in enumerate(lab.cluster.nodes):
        closed = f"address: 127.0.0.1\n    port: {number + 2}\n"
        text = text.replace(f"address: {node.address}\n", closed, 1)
    (tmp_path / "cluster.yaml").write_text(text)
    elsewhere = Machine(tmp_path / "elsewhere", monkeypatch, capsys)
    for words in (["status"], ["logs"], ["down"], ["restart"], ["clean"]):
        done = elsewhere(*words, "--cluster", str(tmp_path / "cluster.yaml"), code=1)
        assert "nothing listens for SSH on 127.0.0.1 port 2" in done.out + done.err, words
