"""The guard on virtual Sparks: it runs, comes back, acts on what it reads; its evidence outlives its node."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glmspark.guard.ring import read_lines
from glmspark.lab.guards import BASE, HOME, OVERLAY
from tests.lab.virtual import VirtualSparks

MEMINFO = "MemTotal: 126877696 kB\nMemFree: {free} kB\nMemAvailable: {free} kB\nCached: {cache} kB\n"
REFUSED = "3,1,5000000,-;NVRM: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)"


def state(lab: VirtualSparks, node: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lab.path(node, f"{HOME}/state.json").read_text())
    return found


def until(lab: VirtualSparks, node: str, true: Callable[[dict[str, Any]], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = state(lab, node)
        if true(found):
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {state(lab, node)}")


def write(lab: VirtualSparks, node: str, path: str, text: str, *, root: bool = True) -> None:
    """Put a file into a node, whole."""
    script = 'mkdir -p -- "$(dirname -- "$1")"; printf "%s\\n" "$2" > "$1.new"; mv -- "$1.new" "$1"'
    lab.shell(node, "sh", "-c", script, "write", path, text, root=root)


@pytest.fixture
def real(lab: VirtualSparks) -> Any:
    """Whatever a test pretends, the guards read what is real again afterwards."""
    yield
    for node in ("spark1", "spark3"):
        lab.shell(node, "rm", "-rf", OVERLAY, f"{BASE}/ranks/pretended", root=True)


def test_every_node_has_one_that_user_and_cluster_can_ask(lab: VirtualSparks) -> None:
    done = lab.glmspark("guard", "--cluster", str(lab.home.cluster_file), "--json")
    guards = json.loads(done.stdout)["guards"]
    assert set(guards) == {"spark1", "spark2", "spark3"}
    for node, one in guards.items():
        assert one["runs"]
        assert one["home"] == HOME
        assert one["state"]["node"] == node
        assert set(one["state"]["readings"]["net"]) == {"enp1s0f0np0"}
        assert one["state"]["readings"]["net"]["enp1s0f0np0"]["up"] is True
        assert one["state"]["readings"]["memory"]["huge_free"] > 0


def test_a_cut_link_is_seen_and_mended(lab: VirtualSparks) -> None:
    lab.lab("cut", "spark2")
    try:
        found = until(lab, "spark2", lambda state: state["alerts"])
        assert [(one["kind"], one["reading"]["of"]) for one in found["alerts"]] == [
            ("link-down", "enp1s0f0np0")
        ]
    finally:
        lab.lab("mend", "spark2")
    until(lab, "spark2", lambda state: not state["alerts"])


def test_a_killed_guard_comes_back_and_has_lost_nothing(lab: VirtualSparks) -> None:
    before = state(lab, "spark3")
    ring = str(lab.path("spark3", f"{HOME}/ring"))
    killed = time.time()
    lab.shell("spark3", "kill", "-KILL", str(before["pid"]), root=True)
    until(lab, "spark3", lambda state: state["pid"] != before["pid"])
    assert max(line["t"] for line in read_lines(ring) if line["t"] < killed) > before["time"] - 2


@pytest.mark.usefixtures("real")
def test_what_a_node_saw_lies_on_the_next_one(lab: VirtualSparks) -> None:
    write(lab, "spark1", f"{OVERLAY}/kmsg", REFUSED)
    found = until(lab, "spark1", lambda state: state["alerts"])
    assert [one["kind"] for one in found["alerts"]] == ["nvrm-no-memory"]
    assert found["actions"] == []  # a refusal with memory free is a matter for people
    copies = lab.path("spark2", f"{HOME}/peers/spark1")
    end = time.monotonic() + 60
    while time.monotonic() < end and not any("kernel" in line for line in read_lines(str(copies))):
        time.sleep(0.1)
    (line,) = [line for line in read_lines(str(copies)) if "kernel" in line]
    assert "NV_ERR_NO_MEMORY" in line["kernel"]["line"]
    user = int(lab.shell("spark2", "id", "-u"))
    assert copies.stat().st_gid == user  # the user's own tools read it


# Answers as an agent does, and ends its rank when it is told to stop.
AGENT = """\
import json, os, socket, subprocess, sys
rank = subprocess.Popen(["sleep", "600"])
started = lambda pid: int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[19])
me = [os.getpid(), started(os.getpid())]
def say(state, family):
    text = json.dumps({"state": state, "rank": 0, "family": family, "agent": me})
    open("state.json.new", "w").write(text)
    os.replace("state.json.new", "state.json")
server = socket.socket(socket.AF_UNIX)
server.bind("agent.sock")
server.listen()
say(sys.argv[1], [[rank.pid, started(rank.pid)]])
while True:
    connection, _ = server.accept()
    request = json.loads(connection.makefile().readline())
    open("heard", "a").write(json.dumps(request) + "\\n")
    connection.sendall(b'{"t": "state", "state": {}}\\n')
    connection.close()
    if request["do"] == "stop":
        rank.kill()
        rank.wait()
        say("failed", [])
        break
"""


def pretend(lab: VirtualSparks, phase: str) -> tuple[Path, Path]:
    """A deployment of the lab's user on spark3; its directory and what its agent has heard."""
    home = f"{BASE}/ranks/pretended"
    plan = {"version": 1, "free_low_bytes": 4 << 30, "free_critical_bytes": 2 << 30, "unified": True}
    write(lab, "spark3", f"{home}/guard.json", json.dumps(plan | {"load_need_bytes": 90 << 30}), root=False)
    write(lab, "spark3", f"{home}/agent.py", AGENT, root=False)
    start = 'cd "$1" && setsid --fork python3 -I agent.py "$2" < /dev/null > /dev/null 2>&1'
    lab.shell("spark3", "sh", "-c", start, "start", home, phase)
    path = lab.path("spark3", home)
    return path, path / "heard"


@pytest.mark.usefixtures("real")
def test_a_loading_node_gets_its_page_cache_back(lab: VirtualSparks) -> None:
    drop = Path(lab.home.nodes / "spark3/own/vm/drop_caches")  # the node's own, as its vm.* settings are
    drop.write_text("0")
    write(lab, "spark3", f"{OVERLAY}/proc/meminfo", MEMINFO.format(free=80 << 20, cache=38 << 20))
    pretend(lab, "running")
    found = until(lab, "spark3", lambda state: state["actions"])
    assert found["phase"] == "loading"
    assert found["actions"][0]["action"] == "drop-page-cache"
    assert found["actions"][0]["reading"]["free"] == 80 << 30
    assert found["actions"][0]["result"].startswith("done")
    assert drop.read_text().startswith("1")


@pytest.mark.usefixtures("real")
def test_a_serving_node_closes_its_door_then_stops_its_deployment(lab: VirtualSparks) -> None:
    write(lab, "spark3", f"{OVERLAY}/proc/meminfo", MEMINFO.format(free=20 << 20, cache=1 << 20))
    home, heard = pretend(lab, "ready")
    found = until(lab, "spark3", lambda state: state["phase"] == "serving")
    done = len(found["actions"])
    (pid,) = [row[0] for row in json.loads((home / "state.json").read_text())["family"]]
    score = f"/proc/{pid}/oom_score_adj"
    assert lab.shell("spark3", "cat", score, root=True) == "600"
    write(lab, "spark3", f"{OVERLAY}/proc/meminfo", MEMINFO.format(free=3 << 20, cache=1 << 20))
    found = until(lab, "spark3", lambda state: not state["admission"]["open"])
    assert found["level"] == "low"
    write(lab, "spark3", f"{OVERLAY}/proc/meminfo", MEMINFO.format(free=1 << 20, cache=1 << 20))
    found = until(lab, "spark3", lambda state: state["deployments"]["pretended"]["state"] == "failed")
    found = until(lab, "spark3", lambda state: len(state["actions"]) >= done + 2)
    assert [one["action"] for one in found["actions"][done:][:2]] == ["close-admission", "stop"]
    asked = [json.loads(line) for line in heard.read_text().splitlines()]
    assert [(one["do"], one.get("open")) for one in asked][:2] == [("admission", False), ("stop", None)]
    assert asked[-1]["reason"]["kind"] == "memory"
    assert lab.ssh("spark3", "true").returncode == 0


def test_its_cost(lab: VirtualSparks) -> None:
    """At most 25 MB, and 1 % of a core over five seconds."""
    pid = state(lab, "spark2")["pid"]
    outside = lab.shell("spark2", "sh", "-c", f"cat /proc/{pid}/stat", root=True)

    def used(text: str) -> int:
        words = text.rpartition(")")[2].split()
        return int(words[11]) + int(words[12])

    time.sleep(5)
    ticks = used(lab.shell("spark2", "cat", f"/proc/{pid}/stat", root=True)) - used(outside)
    rows = lab.shell("spark2", "grep", "-E", "VmRSS|VmHWM", f"/proc/{pid}/status", root=True).split()
    assert ticks / 100 <= 0.05 * 1.5  # half as much again for a busy machine
    assert max(int(word) for word in rows if word.isdecimal()) < 25_000
