"""The guard as it is shipped: one archive in a process of its own, on pretended readings."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glmspark.guard.__main__ import main
from glmspark.guard.files import Roots, Trouble
from glmspark.guard.processes import read_process
from glmspark.guard.prometheus import escape, render
from glmspark.guard.ring import read_lines
from glmspark.guard.run import load_config, take_lock, tell_systemd, wants_resume
from glmspark.nodes.guards import GUARD
from tests.unit.guard.spark import put

MEMINFO = "MemTotal: 1000000 kB\nMemFree: {0} kB\nMemAvailable: {0} kB\nCached: 9000 kB\n"


class Running:
    """A guard on a node whose memory is pretended."""

    def __init__(self, root: Path) -> None:
        self.root, self.home = root, root / "state/guard"
        self.home.mkdir(parents=True)
        (self.home / "guard.pyz").write_bytes(GUARD.data)
        self.port = free_port()
        config = {
            "version": 1,
            "node": "spark1",
            "states": [str(root / "state")],
            "metrics": f"127.0.0.1:{self.port}",
            "overlay": str(root / "fake"),
            "kmsg": str(root / "kmsg"),
        }
        (self.home / "config.json").write_text(json.dumps(config))
        self.memory(500_000)
        argv = [sys.executable, "-I", "-S", str(self.home / "guard.pyz"), "run", "--home", str(self.home)]
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE)

    def memory(self, free: int) -> None:
        put(self.root / "fake", "/proc/meminfo.new", MEMINFO.format(free))
        (self.root / "fake/proc/meminfo.new").rename(self.root / "fake/proc/meminfo")

    def state(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.home / "state.json").read_text())
        except (OSError, ValueError):
            return {}
        return found

    def until(self, true: Callable[[dict[str, Any]], Any], seconds: float = 20.0) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            state = self.state()
            if state and true(state):
                return state
            time.sleep(0.05)
        raise AssertionError(f"not within {seconds} s: {self.state()}")

    def end(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=20)
        return said.decode()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    if running.process.poll() is None:
        running.end()


def test_it_looks_alarms_and_tells(guard: Running, capsys: pytest.CaptureFixture[str]) -> None:
    state = guard.until(lambda state: state["readings"]["memory"])
    assert (state["node"], state["phase"], state["level"]) == ("spark1", "idle", "ok")
    assert state["pid"] == guard.process.pid
    assert main(["run", "--home", str(guard.home)]) == 1
    assert "runs already" in json.loads(capsys.readouterr().out)["error"]
    guard.memory(10_000)
    (guard.root / "kmsg").write_text("NVRM: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)\n")
    state = guard.until(lambda state: state["level"] == "critical" and len(state["alerts"]) == 2)
    assert {one["kind"] for one in state["alerts"]} == {"memory-critical", "nvrm-no-memory"}
    assert state["actions"] == []  # there is nothing to stop
    with socket.create_connection(("127.0.0.1", guard.port), timeout=5) as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        said = connection.makefile().read()
    assert 'glmspark_guard_level{node="spark1"} 2' in said
    assert 'glmspark_guard_alert{node="spark1",kind="nvrm-no-memory",of=""} 1' in said
    # Its own cost: the bar is 25 MB.
    rows = dict(
        line.split(":", 1) for line in Path(f"/proc/{guard.process.pid}/status").read_text().splitlines()
    )
    assert int(rows["VmHWM"].split()[0]) < 25_000
    assert "ended as asked" in guard.end()
    assert guard.process.returncode == 0
    assert any("kernel" in line for line in read_lines(str(guard.home / "ring")))


def test_once_and_state_and_what_is_not_understood(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*words: str) -> tuple[int, dict[str, Any]]:
        code = main(list(words))
        return code, json.loads(capsys.readouterr().out)

    code, found = call("once", "--home", str(tmp_path))
    assert (code, found["phase"]) == (0, "idle")
    assert found["readings"]["memory"]["total"] > 0
    assert not (tmp_path / "ring").exists()
    (tmp_path / "state.json").write_text('{"version":1}\n')
    assert call("state", "--home", str(tmp_path)) == (0, {"version": 1})
    for words in (("state", "--home", "/nowhere"), ("fly",), ("run", "--house", "x"), ()):
        code, found = call(*words)
        assert code == 1
        assert found["error"]


def test_a_broken_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(Trouble, match="not JSON"):
        load_config(str(tmp_path))
    assert load_config(str(tmp_path / "other")).node == socket.gethostname()


def test_one_lock(tmp_path: Path) -> None:
    handle = take_lock(str(tmp_path))
    with pytest.raises(Trouble, match="runs already"):
        take_lock(str(tmp_path))
    os.close(handle)
    os.close(take_lock(str(tmp_path)))


def test_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tell_systemd("WATCHDOG=1")  # nobody waits for it
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        tell_systemd("READY=1")
        assert one.recv(100) == b"READY=1"


def test_only_deployments_marked_so_are_brought_back(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert not wants_resume(str(tmp_path), Roots())
    (tmp_path / "a/spec.json").write_text('{"watching": {"keep_up": false}}')
    assert not wants_resume(str(tmp_path), Roots())
    (tmp_path / "a/spec.json").write_text('{"watching": {"keep_up": true}}')
    assert wants_resume(str(tmp_path), Roots())
    me = read_process(Roots(), os.getpid())
    assert me is not None
    (tmp_path / "a/state.json").write_text(json.dumps({"agent": [me.pid, me.started]}))
    assert not wants_resume(str(tmp_path), Roots())  # its agent answers for it
    (tmp_path / "a/state.json").write_text(json.dumps({"agent": [me.pid, me.started + 1]}))
    assert wants_resume(str(tmp_path), Roots())  # one of before the reboot
    (tmp_path / "a/state.json").write_text('{"state": "failed"}')
    assert not wants_resume(str(tmp_path), Roots())
    (tmp_path / "a/state.json").write_text('{"state": "failed", "lost": true}')
    assert wants_resume(str(tmp_path), Roots())


def test_labels_are_escaped() -> None:
    assert escape('a"b\\c\nd') == 'a\\"b\\\\c\\nd'
    state = {
        "node": 'x"y',
        "level": "low",
        "admission": {"open": False},
        "readings": {"gpu": [{"index": 0, "util": 5, "power_w": None, "clock_mhz": 1, "temp_c": 2}]},
        "deployments": {"a": {"resident": 5, "phase": "serving"}},
        "alerts": [{"kind": "disk-low", "reading": {"of": "/"}}, {"kind": "xid", "reading": None}],
        "counts": {"stop": 2},
        "up_s": 3.5,
    }
    text = render(state)
    assert 'glmspark_guard_level{node="x\\"y"} 1' in text
    assert 'glmspark_guard_actions_total{node="x\\"y",kind="stop"} 2' in text
    assert "gpu_power_watts" not in text
    assert text.count("# TYPE glmspark_guard_alert gauge") == 1
