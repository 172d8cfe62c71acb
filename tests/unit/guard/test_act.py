"""What is decided is done through the node's agents and the kernel's settings; and scores are put back."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glmspark.guard.act import (
    Hands,
    agent_command,
    ask_agent,
    owner_of,
    resume_command,
    run_as_owner,
    stop_reason,
)
from glmspark.guard.config import Config
from glmspark.guard.decide import Action
from glmspark.guard.deployments import Deployed
from glmspark.guard.files import Roots, Trouble
from glmspark.guard.processes import Process
from glmspark.guard.protect import AGENT, ENGINE, LISTENER, Protection, listeners
from tests.unit.guard.spark import deployed, put, stat_line


class Agent:
    """Answers one request after another on a deployment's socket, as the node agent does."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True)
        self.heard: list[Any] = []
        self._socket = socket.socket(socket.AF_UNIX)
        directory = os.open(home, os.O_RDONLY)
        self._socket.bind(f"/proc/self/fd/{directory}/agent.sock")
        os.close(directory)
        self._socket.listen()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection, connection.makefile("rb") as lines:
                self.heard.append(json.loads(lines.readline()))
                connection.sendall(b'{"t":"state","state":{"state":"ready"}}\n')


def at(home: Path) -> Deployed:
    return replace(deployed(), home=str(home))


def done_by(config: Config, *work: tuple[Action, Deployed | None], python: str = sys.executable) -> list[str]:
    said: list[str] = []
    hands = Hands(config, lambda action, text: said.append(f"{action.kind}: {text}"), python=python)
    for action, one in work:
        hands.take(action, one)
    end = time.monotonic() + 60
    while time.monotonic() < end and len(said) < len(work):
        time.sleep(0.01)
    return said


def test_memory_by_the_kernels_settings(tmp_path: Path) -> None:
    drop, compact = tmp_path / "drop", tmp_path / "compact"
    drop.touch()
    compact.touch()
    config = Config("spark1", drop_caches=str(drop), compact=str(compact))
    said = done_by(config, (Action("drop-page-cache", "why"), None), (Action("compact", "why"), None))
    assert [one.partition(" (")[0] for one in said] == ["drop-page-cache: done", "compact: done"]
    assert (drop.read_text(), compact.read_text()) == ("1", "1")
    (failed,) = done_by(
        replace(config, drop_caches=str(tmp_path / "no")), (Action("drop-page-cache", ""), None)
    )
    assert "failed" in failed


def test_the_agent_is_told_what_and_why(tmp_path: Path) -> None:
    # Longer than a socket's path may be.
    home = tmp_path / ("x" * 60) / ("y" * 60) / "glm"
    agent = Agent(home)
    close = Action("close-admission", "memory is low", {"free": 5}, "glm")
    stop = Action("stop", "memory is critical", {"free": 1}, "glm")
    said = done_by(Config("spark1"), (close, at(home)), (stop, at(home)))
    assert [one.partition(" (")[0] for one in said] == [
        "close-admission: the agent was told",
        "stop: the agent stops it",
    ]
    first, second = agent.heard
    assert (first["do"], first["open"], first["reason"]["by"]) == ("admission", False, "guard")
    assert second["do"] == "stop"
    reason = second["reason"]
    assert reason == stop_reason(at(home), stop, "spark1", reason["at"])
    assert (reason["kind"], reason["node"], reason["rank"]) == ("memory", "spark1", 0)
    assert "spark1" in reason["what"]


def test_the_agents_program_where_the_agent_does_not_answer(tmp_path: Path) -> None:
    home = tmp_path / "state/ranks/glm"
    home.mkdir(parents=True)
    (failed,) = done_by(Config("spark1"), (Action("stop", "", {}, "glm"), at(home)))
    assert "failed: no agent answers" in failed
    (home / "agent.pyz").write_text(
        "import json, os, sys\n"
        "json.dump([sys.argv[1:], os.environ['GLMSPARK_STATE_DIR']], open('heard', 'w'))\n"
    )
    (said,) = done_by(Config("spark1"), (Action("stop", "", {}, "glm"), at(home)))
    assert "stopped by the agent's program" in said
    heard = json.loads((home / "heard").read_text())
    assert heard == [["stop", "glm", "--keep"], str(tmp_path / "state")]
    (home / "agent.pyz").rename(home.parent / "elsewhere")
    (home / "agent.pyz").symlink_to(home.parent / "elsewhere")
    (refused,) = done_by(Config("spark1"), (Action("stop", "", {}, "glm"), at(home)))
    assert "not a program of who owns" in refused
    assert agent_command(str(home), ["stop"], python="python3") == [
        *("python3", "-I", f"{home}/agent.pyz", "stop")
    ]


def test_programs_run_as_who_owns_the_directory(tmp_path: Path) -> None:
    program = tmp_path / "who.sh"
    program.write_text("id -u > who")
    for path in (tmp_path, program) if os.geteuid() == 0 else ():
        os.chown(path, 65534, 65534)
    for parent in tmp_path.parents:
        if parent.is_relative_to("/tmp") and parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o011)
    assert run_as_owner(["sh", str(program)], str(program), str(tmp_path), 10, state="/s") == 0
    assert int((tmp_path / "who").read_text()) == tmp_path.stat().st_uid
    assert run_as_owner([str(tmp_path / "none")], str(program), str(tmp_path), 10, state="/s") is None


def test_nothing_of_others_is_run(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    program = tmp_path / "real/agent-1.pyz"
    program.write_text("")
    assert owner_of(str(tmp_path / "real"), str(program)) == os.getuid()
    (tmp_path / "ranks").symlink_to(tmp_path / "real")  # as a user might point at a place of root's
    with pytest.raises(Trouble, match="not a program of"):
        owner_of(str(tmp_path / "ranks"), str(tmp_path / "ranks/agent-1.pyz"))
    if os.geteuid() == 0:
        os.chown(program, 65534, 65534)
        with pytest.raises(Trouble, match="not a program of"):
            owner_of(str(tmp_path / "real"), str(program))


def test_the_newest_agent_brings_back(tmp_path: Path) -> None:
    assert resume_command(str(tmp_path), python="p") is None
    for age, name in ((50, "agent-b.pyz"), (100, "agent-a.pyz")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    assert resume_command(str(tmp_path), python="p") == ["p", "-I", str(tmp_path / "agent-b.pyz"), "resume"]


@pytest.mark.parametrize("answer", [b"", b"nonsense\n", b"[1]\n", b"{" * 2000 + b"\n"])
def test_an_agent_that_says_nonsense_has_not_answered(tmp_path: Path, answer: bytes) -> None:
    home = tmp_path / "glm"
    home.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(home / "agent.sock"))
        server.listen()

        def say() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        threading.Thread(target=say, daemon=True).start()
        assert ask_agent(str(home), {"do": "status"}) is None
    assert ask_agent(str(tmp_path / "none"), {"do": "status"}) is None


def test_scores_are_set_noted_and_put_back(tmp_path: Path) -> None:
    for pid, parent, name in ((1, 0, "systemd"), (50, 1, "sshd"), (51, 50, "sshd"), (60, 1, "python3")):
        put(tmp_path, f"/proc/{pid}/stat", stat_line(pid, name, parent=parent))
        put(tmp_path, f"/proc/{pid}/oom_score_adj", "0\n")
    put(tmp_path, "/proc/70/stat", stat_line(70, "VLLM::EngineCore"))
    put(tmp_path, "/proc/70/oom_score_adj", "-1000\n")  # as others set it

    def score(pid: int) -> int:
        return int((tmp_path / f"proc/{pid}/oom_score_adj").read_text())

    class Here(Protection):
        """Writes into the pretended /proc."""

    from glmspark.guard import protect

    real = protect._put
    protect._put = lambda path, value: put(tmp_path, path, str(value))  # type: ignore[assignment]
    try:
        journal = str(tmp_path / "oom.json")
        one = replace(
            deployed(agent=60),
            home=str(tmp_path),
            family=(Process(70, "VLLM::EngineCore", "S", 60, 77, 1.0, 1),),
        )
        first = Here(Roots(str(tmp_path)), journal)
        first.apply([one])
        first.apply_listeners()
        assert (score(50), score(51), score(60), score(70)) == (LISTENER, 0, AGENT, ENGINE)
        if os.geteuid() == 0:  # a list that names a process of somebody else
            put(tmp_path, "/proc/90/stat", stat_line(90, "python3"))
            put(tmp_path, "/proc/90/oom_score_adj", "0\n")
            os.chown(tmp_path / "proc/90", 65534, 65534)
            first.apply([replace(one, agent=None, family=(Process(90, "python3", "S", 1, 77, 1.0, 1),))])
            assert score(90) == 0
        assert stat.S_IMODE(Path(journal).stat().st_mode) == 0o600
        # It was killed: the next one knows what was there before.
        second = Here(Roots(str(tmp_path)), journal)
        second.apply_listeners()
        second.restore()
        assert (score(50), score(60)) == (0, 0)
        assert not Path(journal).exists()
    finally:
        protect._put = real


def test_sessions_are_no_listeners() -> None:
    rows = [Process(pid, "sshd", "S", parent, 1, 0.0, 1) for pid, parent in ((50, 1), (51, 50), (52, 51))]
    assert [one.pid for one in listeners(rows, [50, 51, 52])] == [50]
