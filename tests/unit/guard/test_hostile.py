"""What a user may put into his own directories, before a guard that is root."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glmspark.guard import act
from glmspark.guard.act import as_usual, ask_agent, run_as_owner
from glmspark.guard.config import parse_config, parse_thresholds
from glmspark.guard.deployments import DeploymentReader
from glmspark.guard.engine_metrics import fetch
from glmspark.guard.files import Roots, Trouble, read_json
from glmspark.guard.links import read_interface
from glmspark.guard.processes import Process
from glmspark.guard.protect import ENGINE, Protection
from tests.unit.guard.spark import TOTAL, deployed, put, stat_line

CONTAINER = "c" * 64


def test_a_pipe_a_link_and_a_device_are_no_state(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")  # to open it would wait for ever
    (tmp_path / "real.json").write_text("{}")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    (tmp_path / "device.json").symlink_to("/dev/zero")
    found = [read_json(str(tmp_path / name)) for name in ("pipe.json", "link.json", "device.json")]
    assert found == [None, None, None]
    assert read_json(str(tmp_path / "real.json")) == {}


def test_names_of_links_lead_nowhere_else(tmp_path: Path) -> None:
    for name in ("rx_bytes", "tx_bytes"):
        put(tmp_path, f"/home/me/x/statistics/{name}", "5\n")  # a pipe would be waited for
        put(tmp_path, f"/sys/class/net/fab0/statistics/{name}", "5\n")
    roots = Roots(str(tmp_path))
    assert read_interface(roots, "fab0") is not None
    assert read_interface(roots, "../../../home/me/x") is None
    many = {"version": 1, "fabric": [f"fab{number}" for number in range(5000)]}
    assert len(parse_thresholds(many, TOTAL).fabric) == 16


def test_names_and_sizes_are_bounded(tmp_path: Path) -> None:
    state = json.dumps({"state": "x" * 9000, "container": "c" * 63, "family": []})
    for name in ("glm", "..x", "a b", "x" * 200, os.fsdecode(b"\xff")):
        put(tmp_path, f"/ranks/{name}/state.json", state)
    reader = DeploymentReader(Roots(str(tmp_path / "none")), (str(tmp_path),))
    (one,) = reader.read(TOTAL)
    assert (one.name, len(one.state), one.container) == ("glm", 40, None)
    (tmp_path / "ranks/glm").rename(tmp_path / "gone")
    assert reader.read(TOTAL) == []
    assert reader._read == {}  # nothing is kept of what is gone


def test_scores_only_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: dict[str, int] = {}
    monkeypatch.setattr("glmspark.guard.protect._put", written.__setitem__)
    for pid, name in ((50, "sshd"), (70, "VLLM::Worker"), (71, "sshd")):
        put(tmp_path, f"/proc/{pid}/stat", stat_line(pid, name))
        put(tmp_path, f"/proc/{pid}/oom_score_adj", "0")
        put(tmp_path, f"/proc/{pid}/cgroup", "0::/system.slice/ssh.service\n")
    put(tmp_path, "/proc/70/cgroup", f"0::/system.slice/docker-{CONTAINER}.scope\n")
    protection = Protection(Roots(str(tmp_path)), str(tmp_path / "oom.json"))
    monkeypatch.setattr(protection, "_belongs", lambda pid, home: False)
    family = tuple(Process(pid, "x", "S", 1, 77, 1.0, 1) for pid in (50, 70))
    protection.apply([replace(deployed(), family=family, container=CONTAINER)])
    assert written == {"/proc/70/oom_score_adj": ENGINE}
    protection.apply([replace(deployed(), family=family, container=None)])
    assert written == {"/proc/70/oom_score_adj": ENGINE}
    if os.geteuid() == 0:
        os.chown(tmp_path / "proc/71", 65534, 65534)
        protection.apply_listeners()
        assert "/proc/50/oom_score_adj" in written
        assert "/proc/71/oom_score_adj" not in written  # anybody can call a program sshd


def test_who_listens_must_own_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "agent.sock"))
        server.listen()

        def answer() -> None:
            with contextlib.suppress(OSError):  # the test is over
                while True:
                    connection, _ = server.accept()
                    with connection:
                        heard.append(connection.recv(1000))
                        connection.sendall(b'{"t": "state"}\n')

        threading.Thread(target=answer, daemon=True).start()
        assert ask_agent(str(tmp_path), {"do": "status"}) == {"t": "state"}
        real = os.fstat

        def foreign(handle: int) -> Any:
            about = list(real(handle))
            about[4] = 4242
            return os.stat_result(about)

        monkeypatch.setattr(act.os, "fstat", foreign)
        assert ask_agent(str(tmp_path), {"do": "status"}) is None
    assert [one for one in heard if one] == [b'{"do": "status"}\n']


def test_programs_run_as_the_configured_user_alone(tmp_path: Path) -> None:
    program = tmp_path / "agent.pyz"
    program.write_text("")
    with pytest.raises(Trouble, match="not of user 4242"):
        run_as_owner(["true"], str(program), str(tmp_path), 5, state="/s", owner=4242)
    assert run_as_owner(["true"], str(program), str(tmp_path), 5, state="/s", owner=os.getuid()) == 0
    assert run_as_owner(["sleep", "60"], str(program), str(tmp_path), 0.1, state="/s") is None


def test_what_the_unit_gives_is_for_the_guard_alone() -> None:
    if os.geteuid() == 0:
        child = subprocess.Popen(["sleep", "60"])
        os.setpriority(os.PRIO_PROCESS, child.pid, -5)
        try:
            as_usual(child.pid)
            assert os.getpriority(os.PRIO_PROCESS, child.pid) == 0
        finally:
            child.kill()
            child.wait()
    as_usual(2**30)  # it has ended: no matter


@pytest.mark.parametrize("field", ["metrics", "peer_port"])
def test_ports_that_are_none_are_refused(field: str) -> None:
    value = {"metrics": "127.0.0.1:99999", "peer_port": 99999}[field]
    with pytest.raises(Trouble, match=field):
        parse_config({"version": 1, "node": "a", field: value})
    with pytest.raises(Trouble, match="not an http URL"):
        fetch("http://127.0.0.1:99999/metrics")
