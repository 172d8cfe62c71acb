"""A real agent on this machine: what it starts, what it tells, and that it leaves nothing."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glmspark.launch.agent_archive import AGENT
from glmspark.nodes import processes
from tests.unit.compiled import compiled
from tests.unit.launch.agent.specs import spec_data

# A rank with a child in a session of its own, and a shared memory segment.
FAMILY = """\
import subprocess, sys, time
from multiprocessing import shared_memory
segment = shared_memory.SharedMemory(create=True, size=4096)
child = subprocess.Popen(["sleep", "999"], start_new_session=True)
print("segment", segment.name, flush=True)
print("child", child.pid, flush=True)
time.sleep(999)
"""


class Agents:
    """The agent's commands on this machine, with a state directory of the test's own."""

    def __init__(self, directory: Path) -> None:
        self.archive = directory / "agent.pyz"
        self.archive.write_bytes(compiled(AGENT.data))
        self.state = directory / "state"
        self.scratch = directory / "glmspark-scratch"
        self.home = self.state / "ranks" / "one"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "GLMSPARK_STATE_DIR": str(self.state)}

    def __call__(self, *words: str, stdin: object = None, code: int = 0) -> Any:
        """Run a command; what it says."""
        done = subprocess.run(
            [sys.executable, "-I", self.archive, *words],
            input=json.dumps(stdin) if stdin is not None else "",
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def start(self, *argv: str, code: int = 0, **changes: Any) -> Any:
        changes = {"scratch": str(self.scratch), **changes}
        return self("start", "one", stdin=spec_data(argv=list(argv), **changes), code=code)

    def wait(self, *states: str, seconds: float = 60) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while True:
            state: dict[str, Any] = json.loads((self.home / "state.json").read_text())
            if state["state"] in states:
                return state
            assert time.monotonic() < end, state
            time.sleep(0.05)

    def lines(self, count: int) -> list[str]:
        """The log, once it has so many lines."""
        end = time.monotonic() + 60
        while True:
            path = self.home / "logs" / "rank-0.log"
            found = path.read_text().splitlines() if path.exists() else []
            if len(found) >= count:
                return found
            assert time.monotonic() < end, found
            time.sleep(0.05)

    def left(self) -> list[object]:
        """What is left of it on this machine."""
        found: list[object] = list(processes.marked("GLMSPARK_DEPLOYMENT_DIR", str(self.home)))
        found += [path for path in (self.scratch, self.home / "env") if path.exists()]
        if (self.home / "logs" / "rank-0.log").exists():
            for line in (self.home / "logs" / "rank-0.log").read_text().splitlines():
                if line.startswith("segment ") and Path("/dev/shm", line.split()[1]).exists():
                    found.append(line)
        return found


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    found = Agents(tmp_path)
    yield found
    found("stop", "one")
    assert found.left() == []


def test_it_starts_tells_and_stops(agents: Agents) -> None:
    agents.start(sys.executable, "-c", FAMILY, env={"A": "1"})
    assert agents.lines(2)[1].startswith("child ")
    assert agents.scratch.stat().st_mode & 0o777 == 0o700
    assert (agents.home / "spec.json").stat().st_mode & 0o777 == 0o600
    assert "of" not in json.loads((agents.home / "spec.json").read_text())
    assert json.loads((agents.home / "record.json").read_text()) == {"of": "test"}
    refused = agents.start("sleep", "1", code=1)
    assert (refused["error"], refused["seen"]) == ("one already runs there", "id 0123456789abcdef, running")
    shared = agents.start("sleep", "1", node="spark2", code=1)
    assert shared["error"] == f"{agents.home} belongs to spark1"
    assert "two nodes share this directory" in shared["next"]
    (state,) = agents("status", "--record")
    assert (state["state"], state["alive"], state["record"]) == ("running", True, {"of": "test"})
    assert agents("ready", "one", stdin={"of": "proven"})["state"]["state"] == "ready"
    assert json.loads((agents.home / "record.json").read_text()) == {"of": "proven"}
    assert agents("clean")["kept"] == ["one"]  # what runs is left alone
    stopped = agents("stop", "one")
    assert (stopped["ending"], stopped["state"]["state"], stopped["state"]["reason"]) == (
        "stopped",
        "stopped",
        None,
    )
    assert agents.left() == []
    assert not (agents.home / "spec.json").exists()  # with its secrets
    assert agents("stop", "one")["ending"] == "nothing to stop"
    assert agents("ready", "one", code=1)["error"] == "one does not run there any more"


def test_an_end_is_described_and_what_it_left_is_gone(agents: Agents) -> None:
    agents.start(sys.executable, "-c", FAMILY.replace("time.sleep(999)", "raise ValueError('layer 3')"))
    reason = agents.wait("failed")["reason"]
    assert (reason["rank"], reason["node"], reason["exit_code"]) == (0, "spark1", 1)
    assert reason["what"].endswith("ended with exit code 1")
    assert "ValueError: layer 3" in reason["seen"]
    assert agents.left() == []
    agents("start", "one", "--again")  # the same, from what was kept
    agents.wait("failed")
    assert (agents.home / "logs.previous" / "rank-0.log").exists()


def test_a_killed_agent_takes_all_along(agents: Agents) -> None:
    agents.start(sys.executable, "-c", FAMILY)
    child = int(agents.lines(2)[1].split()[1])
    agent = agents.wait("running")["agent"][0]
    time.sleep(1.1)  # it has looked: the rank dies with it, and what it has in memory can no longer be asked
    os.kill(agent, signal.SIGKILL)
    reason = agents.wait("failed")["reason"]
    assert reason["what"] == "a rank's agent ended unexpectedly: rank 0 on spark1"
    assert f"{child} (sleep 999)" in reason["seen"]
    assert agents.left() == []


def test_shared_memory_is_seen_when_it_is_made(agents: Agents, tmp_path: Path) -> None:
    """Not only at the next look: this agent looks at nothing else."""
    with zipfile.ZipFile(io.BytesIO(AGENT.data)) as whole:
        files = {name: whole.read(name) for name in whole.namelist()}
    seldom = files["node_agent/agent.py"].replace(b"_TICK, _LOOK = 0.25, 1.0", b"_TICK, _LOOK = 0.25, 9e9")
    assert seldom != files["node_agent/agent.py"]
    with zipfile.ZipFile(agents.archive, "w") as whole:
        for name, data in (files | {"node_agent/agent.py": seldom}).items():
            whole.writestr(name, data)
    go = tmp_path / "go"
    waits = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    agents.start(sys.executable, "-c", waits + FAMILY)
    agents.wait("running")
    time.sleep(1.0)
    go.touch()
    name = agents.lines(1)[0].split()[1]
    end = time.monotonic() + 30
    while f"/dev/shm/{name}" not in agents.wait("running")["shared_memory"]:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_what_cannot_start_is_said_and_leaves_nothing(agents: Agents) -> None:
    said = agents.start("/no/such/program", "--flag", code=1)
    assert said["error"] == "cannot start /no/such/program: No such file or directory"
    assert said["step"] == "/no/such/program --flag"
    assert agents.wait("failed")["reason"]["what"] == said["error"]
    assert agents("start", "one", stdin={"version": 9}, code=1)["error"] == "not a spec of version 1"
    assert agents.start("true", code=1, directory="/elsewhere")["error"].startswith("the spec is for /else")


def test_without_the_lock_a_rank_is_left_over(agents: Agents) -> None:
    agents.start(sys.executable, "-c", FAMILY)
    agents.lines(2)
    state = agents.wait("running")
    time.sleep(1.1)  # the agent has looked at its processes
    (reaper,) = [
        one.pid
        for one in processes.descendants([state["agent"][0]], processes.all_stats())
        if " reap " in processes.command(one.pid)
    ]
    os.kill(reaper, signal.SIGKILL)
    os.kill(state["agent"][0], signal.SIGKILL)
    end = time.monotonic() + 60
    while processes.identify(state["main"]) and time.monotonic() < end:  # it ends with its agent
        time.sleep(0.05)
    assert [one["state"] for one in agents("status", "one")] == ["lost"]
    would, done = agents("clean", "--dry-run"), agents("clean")
    assert would["processes"] == done["processes"] != []
    assert would["files"] == done["files"]
    assert str(agents.scratch) in done["files"]
    assert agents("clean")["files"] == []


def test_its_leash_is_held_by_who_follows(agents: Agents) -> None:
    agents.start("sh", "-c", "while sleep 0.1; do echo here; done")
    follow = [sys.executable, "-I", str(agents.archive), "follow", "one", "--leash", "--lines=0"]
    with subprocess.Popen(
        follow, env=agents.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        assert one.stdin is not None
        assert one.stdout is not None
        kinds = {json.loads(one.stdout.readline())["t"] for _ in range(6)}
        assert kinds == {"beat", "state", "log"}
        one.stdin.close()  # the control machine is gone
        one.wait(60)
    assert agents.wait("running")  # for a moment it may come back
    reason = agents.wait("failed", seconds=60)["reason"]
    assert "closed its connection before the deployment was ready" in reason["what"]
    assert reason["rank"] is None
