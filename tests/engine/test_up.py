"""`glmspark up` for real: vLLM on the CPU, two ranks, asked by the OpenAI client, killed in every way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from glmspark.launch import lock as locks
from glmspark.launch.record import Deployment, Home, State
from glmspark.launch.sweep import HOME_VARIABLE
from glmspark.nodes import processes
from tests.engine.ranks import free_port

COMMAND = Path(sys.executable).with_name("glmspark")
QUESTION = "What is 2+2? Answer in one word:"
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]

pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class Place:
    """A state directory and a port for one deployment, and the command line to use them."""

    state: Path
    port: int
    name: str = "glm-tiny"

    @property
    def home(self) -> Home:
        return Home(self.state / "deployments" / self.name)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "GLMSPARK_STATE_DIR": str(self.state)}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `glmspark WORDS` to its end."""
        return subprocess.run(
            [COMMAND, *words], env=self.environment, capture_output=True, text=True, check=False
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Begin `glmspark up` with these words."""
        return subprocess.Popen(
            [COMMAND, "up", "--port", str(self.port), *words],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def up(self, *words: str) -> str:
        """`glmspark up`; what it printed. It must succeed."""
        done = self.run("up", "--port", str(self.port), *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def record(self) -> Deployment:
        deployment = self.home.read()
        assert deployment is not None
        return deployment

    def wait(self, *states: State, seconds: float = 20) -> Deployment:
        """Wait until the record says one of the states."""
        end = time.monotonic() + seconds
        while (deployment := self.record()).state not in states:
            assert time.monotonic() < end, deployment.state
            time.sleep(0.05)
        return deployment

    def assert_nothing_left(self, before: Deployment) -> None:
        """Of a deployment as it was, no process, shared memory, socket or lock is left."""
        lock = locks.take(self.home.lock_file, wait=10)
        assert lock is not None
        lock.release()
        assert processes.marked(HOME_VARIABLE, str(self.home.path)) == []
        assert [one for one in before.relatives if processes.is_alive(one)] == []
        assert before.shared_memory, "it had none: the test shows nothing"
        assert [path for path in before.shared_memory if Path(path).exists()] == []
        assert not Path(before.scratch).exists()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, str]]:
    """glm-tiny as `glmspark up` without a word serves it, and what that printed."""
    place = Place(tmp_path_factory.mktemp("served"), free_port())
    printed = place.up()
    yield place, printed
    before = place.record()
    begin = time.monotonic()
    down = place.run("down")
    seconds = time.monotonic() - begin
    assert down.returncode == 0, down.stdout + down.stderr
    place.assert_nothing_left(before)
    assert before.state is State.READY
    assert float(down.stdout.split(" stopped in ")[1].split(" s")[0]) <= 5, f"{seconds:.1f} s in all"
    assert place.run("down").stdout == "there is nothing to stop\n"


@pytest.fixture(scope="module")
def client(served: tuple[Place, str]) -> openai.OpenAI:
    """The OpenAI client, as a user would make it."""
    return openai.OpenAI(base_url=f"http://127.0.0.1:{served[0].port}/v1", api_key="none")


def ask(client: openai.OpenAI, prompt: str, *, thinking: bool = False, **options: Any) -> Any:
    return client.chat.completions.create(
        model="glm-tiny",
        temperature=0,
        max_tokens=128,
        messages=[{"role": "user", "content": prompt}],
        extra_body={"chat_template_kwargs": {"enable_thinking": thinking}},
        **options,
    )


def test_every_phase_and_every_canary_is_shown(served: tuple[Place, str]) -> None:
    place, printed = served
    for phase in (
        "rank 0: importing vLLM",
        "rank 1: joining the group",
        "rank 0: serving",
        "rank 1: following",
    ):
        assert phase in printed  # shorter ones may pass between two looks
    verdicts = place.record().verdicts
    assert [verdict.name for verdict in verdicts if not verdict.passed] == []
    for verdict in verdicts:
        assert f"pass  {verdict.name}: " in printed
    assert {verdict.probe for verdict in verdicts} == {
        "ranks",
        "answer",
        "concurrent",
        "long_prompt",
        "long_answer",
        "streaming",
        "reasoning",
        "tool_call",
    }
    assert f"http://127.0.0.1:{place.port}/v1" in printed
    assert "curl http://" in printed
    assert "glmspark chat" in printed


def test_the_printed_curl_line_works(served: tuple[Place, str]) -> None:
    _, printed = served
    line = next(line for line in printed.splitlines() if line.startswith("  try "))
    done = subprocess.run(
        ["sh", "-c", line.removeprefix("  try").strip() + " --silent --fail"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == "4"


def test_the_sum_whole_and_streamed(client: openai.OpenAI) -> None:
    assert ask(client, QUESTION).choices[0].message.content == "4"
    chunks = list(ask(client, QUESTION, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "4"


def test_a_tool_call_is_parsed(client: openai.OpenAI) -> None:
    choice = ask(client, "What is the weather in Paris?", tools=TOOLS).choices[0]
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    assert choice.finish_reason == "tool_calls"
    assert not choice.message.content


def test_reasoning_is_apart_from_the_content(client: openai.OpenAI) -> None:
    question = "Anna has 7 apples and buys 5 more. How many apples does Anna have?"
    message = ask(client, question, thinking=True).choices[0].message
    assert message.content == "12"
    assert "7+5=12" in message.model_extra["reasoning"]


def test_status_shows_the_ranks_and_their_load(served: tuple[Place, str], client: openai.OpenAI) -> None:
    place, _ = served
    done = place.run("status", "--json")
    assert done.returncode == 0
    (status,) = json.loads(done.stdout)
    assert (status["name"], status["state"]) == ("glm-tiny", "ready")
    assert status["uptime"] > 0
    assert [rank["alive"] for rank in status["ranks"]] == [True, True]
    assert [rank["processes"] for rank in status["ranks"]] == [
        ["VLLM::EngineCore", "VLLM::Worker_TP0"],
        ["VLLM::Worker_TP1"],
    ]
    assert all(rank["memory"] > 100 << 20 for rank in status["ranks"])
    assert (status["load"]["running"], status["load"]["waiting"]) == (0, 0)
    assert status["load"]["tokens_per_second"] == 0
    assert status["load"]["finished"] > 0

    seen = threading.Event()

    def keep_busy() -> None:
        while not seen.is_set():
            ask(client, "Count from 1 to 100.")

    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        end = time.monotonic() + 60
        rate = 0.0
        while not rate and time.monotonic() < end:
            (status,) = json.loads(place.run("status", "--json").stdout)
            rate = status["load"]["tokens_per_second"]
    finally:
        seen.set()
        busy.join()
    assert rate > 0

    text = place.run("status").stdout
    assert "glm-tiny  ready for" in text
    assert "EngineCore, Worker_TP0" in text
    assert "tokens/s" in text


def test_a_second_up_says_that_it_runs_and_another_on_the_port_is_explained(
    served: tuple[Place, str],
) -> None:
    place, _ = served
    again = place.run("up", "--port", str(place.port))
    assert again.returncode == 0
    assert "glm-tiny already runs, ready for" in again.stdout
    differs = place.run("up", "--port", str(place.port), "--tp", "1")
    assert differs.returncode == 2
    assert "TP2 PP1 instead of TP1 PP1" in differs.stderr
    other = place.run("up", "--port", str(place.port), "--name", "other")
    assert other.returncode == 2
    assert f"port {place.port} is taken by the deployment glm-tiny" in other.stderr

    stranger = Place(place.state.with_name("stranger"), place.port)  # another user's state directory
    done = stranger.run("up", "--port", str(place.port))
    head = place.record().ranks[0].process
    assert head is not None
    assert done.returncode == 2
    assert f"port {place.port} is taken by process {head.pid} (" in done.stderr


def test_chat_answers_and_logs_show_both_ranks(served: tuple[Place, str]) -> None:
    place, _ = served
    assert place.run("chat", QUESTION).stdout == "4\n"
    answer = json.loads(place.run("chat", "--json", "--thinking", "What is 7+5?").stdout)
    assert answer["content"] == "12"
    assert answer["reasoning"]
    lines = place.run("logs", "-n", "5").stdout.splitlines()
    assert {line.split("  ")[0] for line in lines} == {"rank 0", "rank 1"}


def test_ctrl_c_while_it_starts_stops_everything(tmp_path: Path) -> None:
    place = Place(tmp_path, free_port())
    starting = place.start()
    assert starting.stdout is not None
    printed = ""
    while "joining the group" not in printed:
        line = starting.stdout.readline()
        assert line, printed
        printed += line
    before = place.record()
    starting.send_signal(signal.SIGINT)
    printed += starting.stdout.read()
    assert starting.wait(timeout=20) == 130
    assert "error: interrupted: glm-tiny was stopped while it started" in printed
    place.assert_nothing_left(before)
    status = place.run("status")
    assert (status.returncode, status.stdout.split()[:2]) == (3, ["glm-tiny", "stopped"])


def test_two_at_once_then_accidents_then_up_again(tmp_path: Path) -> None:
    place = Place(tmp_path, free_port())
    both = [place.start("--pp", "2"), place.start("--pp", "2")]
    printed = [one.communicate()[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], printed
    assert sorted("already runs" in text for text in printed) == [False, True]
    before = place.record()
    assert before.plan["pp"] == 2
    assert before.supervisor is not None

    # The supervisor and its reaper are killed at one stroke: the next up finds what they left and removes it.
    children = Path(f"/proc/{before.supervisor.pid}/task/{before.supervisor.pid}/children").read_text()
    mains = {rank.process.pid for rank in before.ranks if rank.process}
    (reaper,) = {int(word) for word in children.split()} - mains
    os.kill(reaper, signal.SIGSTOP)
    os.kill(before.supervisor.pid, signal.SIGKILL)
    os.kill(reaper, signal.SIGKILL)
    assert any(processes.is_alive(one) for one in before.relatives), "nothing is left to clean up"
    lost = place.run("status")
    assert lost.returncode == 1
    assert "glm-tiny  lost" in lost.stdout
    place.up("--tp", "1")
    assert [one for one in before.relatives if processes.is_alive(one)] == []
    assert [path for path in before.shared_memory if Path(path).exists()] == []

    # A killed worker stops all, and the status says which and why.
    before = place.record()
    stats = processes.all_stats()
    (worker,) = [
        stat.pid
        for stat in processes.descendants([one.pid for one in before.relatives], stats)
        if processes.title(stat.pid).startswith("VLLM::Worker")
    ] or [one.pid for one in before.family if processes.title(one.pid).startswith("VLLM::Worker")]
    os.kill(worker, signal.SIGKILL)
    failed = place.wait(State.FAILED)
    assert failed.reason is not None
    assert failed.reason.rank == 0
    assert f"(pid {worker})" in failed.reason.what
    place.assert_nothing_left(before)
    status = place.run("status")
    assert status.returncode == 1
    assert "why:  rank 0's Worker" in status.stdout
    assert place.run("down").stdout == "there is nothing to stop\n"
