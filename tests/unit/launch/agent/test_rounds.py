"""Two real agents and ranks of a few lines: a deployment that was proven starts again as a whole."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.agent.test_life_of_a_rank import Agents
from tests.unit.launch.agent.test_peers import free_port

# What a leader needs of an engine: /health, /metrics, an answer; and a port that it shares with the door.
ENGINE = """\
import http.server, json, socketserver, sys, time
class Engine(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send(b"vllm:num_requests_running 0\\n")
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send(json.dumps({"choices": [{"message": {"content": "four"}}]}).encode())
    def send(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = allow_reuse_port = True
    def server_bind(self):
        import socket
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()
Server(("127.0.0.1", int(sys.argv[1])), Engine).serve_forever()
"""


class Two:
    """A deployment of two ranks. watching: beyond what every test wants."""

    def __init__(self, path: Path) -> None:
        self.agents = []
        for name in ("spark1", "spark2"):
            (path / name).mkdir()
            self.agents.append(Agents(path / name))
        self.watch, self.api = free_port(), free_port()

    def start(self, **watching: Any) -> None:
        api = {"host": "127.0.0.1", "listen": "127.0.0.1", "port": self.api, "model": "m"}
        judged = {"times": 2, "minutes": 30.0, "start": 20.0, "halted": 0.5, "every": 60.0, **watching}
        canary = {"prompt": "2+2?", "expect": "^four$", "max_tokens": 5, "seconds": 5.0}
        for rank in (1, 0):
            argv = [sys.executable, "-c", ENGINE, str(self.api)] if rank == 0 else ["sleep", "999"]
            where = {"listen" if rank == 0 else "connect": f"127.0.0.1:{self.watch}", "silence": 8.0}
            more = {"api": api, "canaries": [canary]} if rank == 0 else {}
            self.agents[rank].start(
                *argv, rank=rank, world=2, node=f"spark{rank + 1}", watch=where, watching=judged, **more
            )
        end = time.monotonic() + 60
        while not all(one.wait("running")["peers"] for one in self.agents) or self.status() != 200:
            assert time.monotonic() < end
            time.sleep(0.05)
        for one in self.agents:
            ask(one.home, {"do": "ready"})

    def main(self, rank: int) -> int:
        return int(self.agents[rank].wait("ready")["main"])

    def back(self, times: int) -> list[dict[str, Any]]:
        """The states once it is back from so many restarts."""
        end = time.monotonic() + 60
        while True:
            found = [one.wait("ready", "restarting", "waiting", "failed", "stopping") for one in self.agents]
            if all(one["state"] == "ready" and len(one["restarts"]) == times for one in found):
                return found
            assert all(one["state"] not in ("failed", "stopping") for one in found), found
            assert time.monotonic() < end, found
            time.sleep(0.05)

    def status(self) -> int:
        """What a client gets, 0 where its connection is refused or broken."""
        connection = http.client.HTTPConnection("127.0.0.1", self.api, timeout=2)
        try:
            connection.request("GET", "/v1/models")
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()


def ask(home: Path, request: dict[str, Any]) -> None:
    """A guard's word to the agent of its node."""
    directory = os.open(home, os.O_PATH)  # a socket's path may be no longer than 107 bytes
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(f"/proc/self/fd/{directory}/agent.sock")
        one.sendall(json.dumps(request).encode() + b"\n")
        assert one.recv(1 << 16)
    os.close(directory)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    found = Two(tmp_path)
    yield found
    for agents in found.agents:
        agents("stop", "one")
        assert agents.left() == []


def test_a_rank_that_ends_begins_all_anew_until_it_was_often_enough(two: Two) -> None:
    two.start(times=1)
    before = [two.main(0), two.main(1)]
    os.kill(before[1], signal.SIGKILL)
    head, other = two.back(1)
    assert {head["main"], other["main"]}.isdisjoint(before)
    assert head["reason"] is None
    restart = head["restarts"][0]
    assert (restart["cause"]["rank"], restart["cause"]["kind"]) == (1, "ended")
    assert restart["seconds"] < 60
    kept = Path(restart["evidence"])
    assert "SIGKILL" in (kept / "cause.json").read_text()
    assert "python" in (kept / "stacks.txt").read_text()  # rank 0 lived on until it was kept
    log = two.agents[1].home / "logs" / "rank-1.log"
    assert "[glmspark: start 1 of this rank after the first]" in log.read_text()
    os.kill(two.main(1), signal.SIGKILL)
    for one in two.agents:
        state = one.wait("failed", seconds=20)
        reason = state["reason"]
        assert (reason["rank"], reason["node"]) == (1, "spark2")
        assert reason["what"].endswith("restarted once within 30 min, so it stays down")
        assert (Path(state["evidence"]) / "cause.json").exists()


def test_a_halted_rank_begins_all_anew_and_clients_are_told(two: Two) -> None:
    two.start()
    ask(two.agents[1].home, {"do": "admission", "open": False, "reason": {"what": "memory is low"}})
    file = two.agents[0].scratch / "admission-closed"
    end = time.monotonic() + 60
    while (two.agents[0].wait("ready").get("admission") or {"open": True})["open"]:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert "memory is low on spark2" in file.read_text()
    ask(two.agents[1].home, {"do": "admission", "open": True, "reason": None})
    while file.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    assert two.status() == 200
    os.kill(two.main(1), signal.SIGSTOP)
    seen: dict[int, int] = {}
    while not all(
        len(json.loads((one.home / "state.json").read_text())["restarts"]) == 1 for one in two.agents
    ):
        code = two.status()
        seen[code] = seen.get(code, 0) + 1
        assert time.monotonic() < end
        time.sleep(0.01)
    head, _ = two.back(1)
    assert "rank 1 on spark2 is halted: sleep" in head["restarts"][0]["cause"]["what"]
    assert 503 in seen
    assert 0 not in seen  # nobody was refused a connection


def test_a_lost_agent_is_waited_for_and_comes_back_by_resume(two: Two) -> None:
    two.start(times=0, keep_up=True)
    os.kill(two.agents[1].wait("ready")["agent"][0], signal.SIGKILL)
    head = two.agents[0].wait("waiting", seconds=15)
    assert (head["waits_for"], head["main"]) == ([1], None)
    assert two.status() == 503
    two.agents[1].wait("failed")
    assert two.agents[1]("resume") == {"ok": True, "resumed": ["one"], "troubles": []}
    head, _ = two.back(1)
    assert head["restarts"][0]["cause"]["kind"] == "lost"
    assert "rank 1 on spark2" in head["restarts"][0]["cause"]["what"]
    # The same the other way round: rank 0's node shuts down, and its agent's memory is gone.
    os.kill(two.agents[0].wait("ready")["agent"][0], signal.SIGTERM)
    assert two.agents[1].wait("waiting", seconds=15)["waits_for"] == [0]
    assert two.agents[0].wait("failed")["lost"]
    two.agents[0]("resume")
    head, _ = two.back(2)
    assert head["restarts"][1]["seconds"] is not None  # it came to be ready
    two.agents[1]("stop", "one", "--keep")
    two.agents[0].wait("stopped")
    assert two.agents[0]("resume")["resumed"] == []  # it was stopped
