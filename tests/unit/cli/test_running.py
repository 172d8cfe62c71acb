"""status, logs, chat and down, with pretended ranks and with nothing at all."""

from __future__ import annotations

import http.server
import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from glmspark.cli.chat import Writer
from glmspark.cli.console import complete_deployment, duration
from glmspark.cli.up import curl_line
from glmspark.config import load_recipe
from glmspark.launch import lock as locks
from glmspark.launch import prepare
from glmspark.launch.record import State, home
from tests.unit.cli.commands import Glmspark
from tests.unit.launch.starts import halt, launch, make_start, wait_free, wait_state, workers


def test_nothing_was_ever_started(glmspark: Glmspark, state: Path) -> None:
    status = glmspark("status")
    assert (status.code, status.err) == (3, "")
    assert status.out == "nothing runs; `glmspark up` serves glm-tiny here\n"
    assert (glmspark("status", "--json").code, glmspark("status", "--json").json) == (3, [])
    down = glmspark("down")
    assert (down.code, down.out) == (0, "there is nothing to stop\n")
    assert (glmspark("down", "--json").code, glmspark("down", "--json").json) == (0, [])
    for words in (["logs"], ["chat", "hello"]):
        done = glmspark(*words)
        assert done.code == 2
        assert "nothing was ever started here" in done.err
    assert glmspark("status", "other").code == 2
    assert complete_deployment("") == []
    assert not state.exists()


def test_one_that_runs_and_then_loses_a_rank(glmspark: Glmspark) -> None:
    ready = launch(make_start("pair", "serves", "serves"))
    where = home("pair")
    status = glmspark("status")
    assert status.code == 0, status.err
    assert "pair  ready for" in status.out
    assert "Worker_TP0" in status.out
    assert "following rank 0" in status.out
    (machine,) = glmspark("status", "pair", "--json").json
    assert machine["state"] == "ready"
    assert [rank["alive"] for rank in machine["ranks"]] == [True, True]
    assert machine["verdicts"][0]["passed"] is True
    assert machine["load"] is not None  # /metrics answers, with nothing in it
    assert machine["load"]["running"] is None

    both = glmspark("logs", "-n", "2")
    assert both.out.splitlines()[0].startswith("rank 0  ")
    assert both.out.splitlines()[-1].startswith("rank 1  ")
    one = glmspark("logs", "--rank", "1", "-n", "1")
    assert one.out == "INFO 01-02 03:04:09 [default_loader.py:501] Loading weights took 0.06 seconds\n"
    assert glmspark("logs", "--rank", "7").code == 2
    assert glmspark("logs", "--json", "--rank", "0").json[0]["source"] == "rank 0"
    assert complete_deployment("pa") == ["pair"]

    os.kill(workers(where, 1), signal.SIGKILL)
    wait_state(where, State.FAILED, seconds=10)
    wait_free(where)
    status = glmspark("status")
    assert status.code == 1
    assert "pair  failed" in status.out
    assert "why:  rank 1's Worker_TP1" in status.out
    assert "next: " in status.out
    (machine,) = glmspark("status", "--json").json
    assert machine["reason"]["rank"] == 1
    assert glmspark("chat", "hello").code == 2
    assert glmspark("logs", "-n", "1").code == 0
    assert glmspark("logs", "-f", "-n", "0").err == "pair does not run any more\n"
    assert glmspark("logs", "--supervisor").out.startswith("failed: rank 1's Worker_TP1")
    assert glmspark("down").out == "there is nothing to stop\n"
    assert ready.supervisor is not None


def test_two_that_run_must_be_named_and_bad_records_hide_neither(glmspark: Glmspark) -> None:
    launch(make_start("first", "serves"))
    launch(make_start("second", "serves"))
    for words in (["down"], ["logs"], ["chat", "hello"]):
        done = glmspark(*words)
        assert done.code == 2
        assert "first" in done.err
        assert "second" in done.err
    assert glmspark("down", "third").code == 2
    assert glmspark("down", "first", "--all").code == 2
    assert glmspark("down", "first").out.startswith("first: stopped in ")
    (stopped, _) = glmspark("status", "--json").json
    assert stopped["state"] == "stopped"
    assert glmspark("status").code == 0

    # Records that cannot be read hide no other.
    for name in ("bad", "worse"):
        home(name).path.mkdir(parents=True)
        home(name).record_file.write_text("{")
    status = glmspark("status")
    assert status.code == 1
    assert "\nsecond  ready for" in status.out
    assert status.err.startswith("error: ")
    assert "bad/deployment.json is not valid JSON" in status.err
    machine = glmspark("status", "--json")
    assert (machine.code, machine.err) == (1, "")
    assert [one["state"] for one in machine.json] == ["stopped", "ready", "unreadable", "unreadable"]

    done = glmspark("down", "--all", "--json")
    assert done.code == 0
    endings = {one["name"]: one["ending"] for one in done.json}
    assert (endings["first"], endings["second"]) == ("nothing to stop", "stopped")
    assert not home("bad").record_file.exists()
    assert glmspark("status").code == 3


def test_a_failed_canary_shows_its_causes_and_stops_all(glmspark: Glmspark) -> None:
    start = make_start("wrong", "serves")
    start.recipe["canaries"] = [{"probe": "answer", "name": "sum", "prompt": "2+2?", "expect": "4"}]
    from glmspark.launch.up import StartError

    with pytest.raises(StartError) as caught:
        launch(start)
    assert caught.value.message == "1 of 2 canaries failed: sum"
    assert caught.value.seen is not None
    assert caught.value.seen.startswith("sum: HTTP 501")
    assert "likely causes: " in (caught.value.next or "")
    wait_free(home("wrong"))
    assert glmspark("status").code == 1


def test_keep_leaves_an_unproven_deployment_running(glmspark: Glmspark) -> None:
    from glmspark.launch.up import StartError

    with pytest.raises(StartError, match="1 of 1 canaries failed: ranks"):
        launch(make_start("kept", "serves alone", keep=True))
    status = glmspark("status")
    assert status.code == 1
    assert "kept  unproven" in status.out
    assert "why:  1 of 1 canaries failed" in status.out
    assert glmspark("down").out.startswith("kept: stopped in ")


def test_what_another_user_started_is_said_so(glmspark: Glmspark, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `sudo glmspark up` with the same home directory: the deployment's directory is root's."""
    home("theirs").path.mkdir(parents=True)
    exists = Path.exists

    def refused(path: Path) -> bool:
        if path.parent.name == "theirs":
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path)

    monkeypatch.setattr(Path, "exists", refused)
    for words in (["status"], ["status", "theirs"], ["logs", "theirs"], ["chat", "hi"]):
        done = glmspark(*words)
        assert done.code == 1, words
        assert done.err.startswith("error: cannot look into ")
        assert "sudo" in done.err
    monkeypatch.undo()


def test_output_that_cannot_be_written_is_one_error(state: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "glmspark", "status"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "error: No space left on device\n")


def test_a_question_that_is_not_text(glmspark: Glmspark, monkeypatch: pytest.MonkeyPatch) -> None:
    done = glmspark("chat", "caf\udce9")
    assert (done.code, "not UTF-8 text" in done.err) == (2, True)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8"))
    done = glmspark("chat")
    assert (done.code, "not UTF-8 text" in done.err) == (2, True)


def test_an_answer_that_breaks_off_says_so(
    glmspark: Glmspark, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is killed within an answer: the connection ends before the body does."""
    piece = 'data: {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": '
    piece += '[{"index": 0, "delta": {"content": "1 2 3"}}]}\n\n'

    asked: list[dict[str, Any]] = []

    class Dies(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", "100000")
            self.end_headers()
            self.wfile.write(piece.encode())

        def log_message(self, *_: object) -> None:
            return

    with http.server.HTTPServer(("127.0.0.1", 0), Dies) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        start = make_start("dies", "serves")
        start.endpoint.url = f"http://127.0.0.1:{server.server_port}/v1"
        start.turn(State.READY)
        lock = locks.take(home("dies").lock_file)
        assert lock is not None
        with lock:
            home("dies").write(start)
            done = glmspark("chat", "Count", "to", "3.")  # words without quotes are one question
        server.shutdown()
    assert done.code == 1
    assert done.out == "1 2 3\n"
    assert asked[0]["messages"] == [{"role": "user", "content": "Count to 3."}]
    assert done.err.startswith("error: the answer broke off: ")
    home("dies").record_file.unlink()


def test_one_that_does_not_answer_says_so(glmspark: Glmspark) -> None:
    launch(make_start("deaf", "serves"))
    record = home("deaf").read()
    assert record is not None
    assert record.ranks[0].process is not None
    halt(record.ranks[0].process.pid)
    status = glmspark("status")
    assert status.code == 1
    assert "rank 0 is halted: main process" in status.out
    assert "does not answer" in status.out
    assert glmspark("down").code == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (42.35, "42.4 s"), (190, "3 min 10 s"), (7500, "2 h 5 min"), (273600, "3 d 4 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_reasoning_is_dimmed_on_a_terminal_and_bracketed_elsewhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for colour in (False, True):
        writer = Writer(colour)
        writer.write("7+", "")
        writer.write("5", "")
        writer.write("", "12")
        writer.end()
    plain, coloured = capsys.readouterr().out.split("12\n")[:2]
    assert plain == "[7+5]\n"
    assert coloured == "\x1b[2m7+5\x1b[0m\n"


def test_the_curl_line_asks_the_recipe_s_own_question_and_names_the_key_s_file() -> None:
    wanted = prepare.read_request(prepare.Request(key="secret"))
    start = make_start("glm-tiny", "serves")
    start.endpoint.needs_key = True
    line = curl_line(start, wanted)
    assert load_recipe("glm-tiny").canaries[1].prompt in line
    assert line.endswith(f'-H "Authorization: Bearer $(cat {wanted.home.key_file})"')
    assert "secret" not in line
