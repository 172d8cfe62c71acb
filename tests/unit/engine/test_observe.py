"""What a rank shows to its agent, and how its API refuses new work."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from glmspark.engine.admission import CLOSED, RETRY_AFTER, Admission
from glmspark.engine.observe import DIRECTORY, STEPS, Steps
from glmspark.launch.node_agent import admission as agents
from glmspark.launch.node_agent.readings import steps

# A stand-in for vLLM's class alone; the file and the signal are the engine's own.
PROCESS = """\
import sys, time, types
module = types.ModuleType("vllm.v1.worker.worker_base")
module.WorkerWrapperBase = type("WorkerWrapperBase", (), {"execute_model": lambda self: None})
for name in ("vllm", "vllm.v1", "vllm.v1.worker"): sys.modules[name] = types.ModuleType(name)
sys.modules["vllm.v1.worker.worker_base"] = module
from glmspark.engine import observe
observe.register()
for _ in range(3): module.WorkerWrapperBase().execute_model()
def waits_here():
    print("there", flush=True)
    time.sleep(60)
waits_here()
"""


def test_a_process_shows_its_steps_and_on_a_signal_its_stacks(tmp_path: Path) -> None:
    environment = {**os.environ, DIRECTORY: str(tmp_path)}
    words = [sys.executable, "-c", PROCESS]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "there\n"
            assert steps(str(tmp_path)) == (3, 3)
            process.send_signal(signal.SIGUSR2)
            end = time.monotonic() + 60
            while "waits_here" not in (tmp_path / f"stacks-{process.pid}").read_text():
                assert time.monotonic() < end
                time.sleep(0.02)
            assert process.poll() is None
        finally:
            process.kill()


def test_steps_are_read_while_one_is_under_way(tmp_path: Path) -> None:
    own = Steps(tmp_path)
    own.begin()
    assert steps(str(tmp_path)) == (1, 0)
    own.end()
    assert steps(str(tmp_path)) == (1, 1)
    assert (tmp_path / f"steps-{os.getpid()}").stat().st_size == STEPS.size
    assert steps(None) is None
    assert steps(str(tmp_path / "none")) is None


_Asgi = Callable[[Any, Any, Any], Awaitable[None]]


async def _passed(_: Any, __: Any, send: Callable[[MutableMapping[str, Any]], Awaitable[None]]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


def asked(app: _Asgi, method: str, path: str) -> list[MutableMapping[str, Any]]:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app({"type": "http", "method": method, "path": path}, None, send))  # type: ignore[arg-type]
    return sent


def test_new_work_is_refused_while_admission_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    app = Admission(_passed)
    assert agents.FILE == CLOSED
    assert asked(app, "POST", "/v1/chat/completions")[0]["status"] == 200
    (tmp_path / CLOSED).write_text("no new work is taken now: spark2 is short of memory\n")
    start, body = asked(app, "POST", "/v1/chat/completions")
    assert start["status"] == 503
    assert (b"retry-after", str(RETRY_AFTER).encode()) in start["headers"]
    error = json.loads(body["body"])["error"]
    assert error == {
        "message": "no new work is taken now: spark2 is short of memory",
        "type": "ServiceUnavailableError",
        "param": None,
        "code": 503,
    }
    for method, path in (("GET", "/v1/models"), ("GET", "/metrics"), ("POST", "/tokenize")):
        assert asked(app, method, path)[0]["status"] == 200
    (tmp_path / CLOSED).unlink()
    assert asked(app, "POST", "/v1/completions")[0]["status"] == 200
