"""Ranks in lockstep for real: vLLM on the CPU, the OpenAI client, streams that are cut, ranks killed."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import psutil
import pytest
from pydantic import BaseModel
from ruamel.yaml import YAML

from bench.soak import Soak
from glmspark.config import recipe_path
from glmspark.engine.lockstep import LockstepError
from glmspark.engine.lockstep.executor import check_layout
from glmspark.engine.lockstep.hangup import RANK_0_GONE
from glmspark.engine.lockstep.settings import Settings
from glmspark.launch.record import State
from tests.engine.lockstep_ranks import LockstepRanks
from tests.engine.ranks import Layout, Ranks, free_port, left_behind
from tests.engine.reference import Reference
from tests.engine.test_up import QUESTION, TOOLS, Place
from tools.glm_tiny.prompts import FIXED_PROMPTS

KEY = "a-key-of-the-test"
FLAGS = {
    "max-num-seqs": "32",
    "reasoning-parser": "glm45",
    "tool-call-parser": "glm47",
    "enable-auto-tool-choice": "",
}
END_LIMIT = 10  # seconds after a kill until all ranks are gone

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def said_by_mp(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, reference: Reference) -> Any:
    """The fixed prompts' tokens from vLLM's own executor, TP2."""
    asked = [(reference.prompt_ids(prompt), prompt.max_tokens) for prompt in FIXED_PROMPTS]
    with Ranks(checkpoint, Layout(2, 1), tmp_path_factory.mktemp("mp"), {"max-num-seqs": "32"}) as ranks:
        return asked, ranks.complete(asked)


@pytest.fixture(scope="module")
def served(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LockstepRanks]:
    """TP2 in lockstep. The last test of the module kills a rank of it."""
    with LockstepRanks(checkpoint, Layout(2, 1), tmp_path_factory.mktemp("lockstep"), FLAGS) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def client(served: LockstepRanks) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="none", max_retries=0)


def ask(client: openai.OpenAI, prompt: str, *, thinking: bool = False, **options: Any) -> Any:
    return client.chat.completions.create(
        model="glm-tiny",
        messages=[{"role": "user", "content": prompt}],
        extra_body={"chat_template_kwargs": {"enable_thinking": thinking}},
        **{"temperature": 0, "max_tokens": 128, **options},
    )


def test_the_same_tokens_as_mp(served: LockstepRanks, said_by_mp: Any) -> None:
    asked, said = said_by_mp
    assert served.complete(asked) == said
    assert all(len(tokens) > 1 for tokens in said)


def test_ranks_agree_before_they_load(served: LockstepRanks) -> None:
    facts = [log.split(f"facts of rank {rank} are ")[1].split()[0] for rank, log in enumerate(logs(served))]
    assert facts[0] == facts[1]
    for log in logs(served):
        assert log.index("facts of rank") < log.index("Starting to load model")


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    assert ask(client, QUESTION).choices[0].message.content == "4"
    chunks = list(ask(client, QUESTION, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "4"
    assert chunks[-1].usage.completion_tokens >= 1


def test_reasoning_is_parsed(client: openai.OpenAI) -> None:
    message = ask(client, "What is 37+48?", thinking=True).choices[0].message
    assert message.content == "85"
    assert message.reasoning


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call_is_parsed(client: openai.OpenAI, stream: bool) -> None:
    answer = ask(client, "What is the weather in Paris?", tools=TOOLS, stream=stream)
    if stream:
        deltas = [call.function for chunk in answer for call in chunk.choices[0].delta.tool_calls or ()]
        name = "".join(delta.name or "" for delta in deltas)
        arguments = "".join(delta.arguments or "" for delta in deltas)
    else:
        (call,) = answer.choices[0].message.tool_calls
        name, arguments = call.function.name, call.function.arguments
    assert (name, json.loads(arguments)) == ("get_weather", {"city": "Paris"})


def test_completions_models_and_metrics(client: openai.OpenAI, served: LockstepRanks) -> None:
    done = client.completions.create(
        model="glm-tiny", prompt="1 2 3 4", max_tokens=8, temperature=0, echo=True
    )
    assert done.choices[0].text.startswith("1 2 3 4")
    assert done.usage is not None
    assert done.usage.completion_tokens <= 8
    assert [model.id for model in client.models.list()] == ["glm-tiny"]
    metrics = httpx.get(f"http://127.0.0.1:{served.port}/metrics").text
    assert "vllm:generation_tokens_total" in metrics


def test_several_answers_and_their_probabilities(client: openai.OpenAI) -> None:
    answer = ask(client, "Hello", n=4, temperature=1, seed=7, max_tokens=8, logprobs=True, top_logprobs=3)
    assert len(answer.choices) == 4
    for choice in answer.choices:
        for token in choice.logprobs.content:
            best = [other.logprob for other in token.top_logprobs]
            assert len(best) == 3
            assert best == sorted(best, reverse=True)
            assert token.logprob <= best[0] <= 0
    again = ask(client, "Hello", n=4, temperature=1, seed=7, max_tokens=8)
    assert [one.message.content for one in again.choices] == [one.message.content for one in answer.choices]


class Weather(BaseModel):
    """A schema the model was never shown."""

    city: str
    warm: bool
    degrees: int


def test_structured_output_holds_to_its_schema(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": Weather.model_json_schema()}}
    for temperature in (0, 1):
        answer = ask(
            client, "Paris", response_format=form, max_tokens=150, temperature=temperature, seed=3
        ).choices[0]
        if answer.finish_reason == "stop":
            Weather.model_validate_json(answer.message.content)
        else:  # a string or a number may go on for ever; its beginning is right all the same
            assert answer.message.content.lstrip().startswith("{")


def test_a_bad_request_is_the_clients_error_and_nobody_elses(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        ask(client, "Hello", max_tokens=-1)
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        ask(client, "word " * 3000)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="x")
    assert ask(client, QUESTION).choices[0].message.content == "4"


def test_streams_cut_at_random_leave_nothing_and_change_nothing(served: LockstepRanks) -> None:
    """The long form of this is bench/soak.py."""
    report = asyncio.run(Soak(f"http://127.0.0.1:{served.port}", streams=32, seed=1).run(20))
    print(json.dumps(report.to_json(), indent=2))
    assert report.troubles == []
    assert report.cut > 20
    assert report.whole > 20


def test_pipeline_stages_under_torchrun(checkpoint: Path, tmp_path: Path, said_by_mp: Any) -> None:
    """One command for all ranks, two stages with a batch in each; the key is asked for; all end as told."""
    asked, said = said_by_mp
    ranks = Torchrun(checkpoint, Layout(1, 2), tmp_path, {"max-num-seqs": "32"}, {"VLLM_API_KEY": KEY})
    with ranks:
        base = f"http://127.0.0.1:{ranks.port}/v1"
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=base, api_key="another", max_retries=0).models.list()
        client = openai.OpenAI(base_url=base, api_key=KEY)
        answers: list[Any] = [None] * len(asked)

        def complete(number: int) -> None:
            ids, tokens = asked[number]
            answers[number] = client.completions.create(
                model="glm-tiny",
                prompt=ids,
                max_tokens=tokens,
                temperature=0,
                extra_body={"return_token_ids": True},
            )

        threads = [threading.Thread(target=complete, args=(number,)) for number in range(len(asked))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [answer.choices[0].token_ids for answer in answers] == said
        (launcher,) = ranks.processes
        family = psutil.Process(launcher.pid).children(recursive=True)
        assert sum("Worker_PP" in " ".join(one.cmdline()) for one in family) == 2
        launcher.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(family, timeout=END_LIMIT)
        assert alive == []


class Torchrun(LockstepRanks):
    """The ranks under torchrun instead of one by one."""

    def command(self, rank: int) -> list[str]:
        """torchrun, which starts a module with the same words for every rank."""
        words = super().command(0)
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(self.layout.world)]
        place = ["--master-addr", "127.0.0.1", "--master-port", str(self.master_port)]
        return [sys.executable, *torchrun, *place, "-m", *words[2:]]

    def start(self) -> None:
        """One process, which starts the ranks."""
        cores = "|".join(str(rank % (psutil.cpu_count() or 1)) for rank in range(self.layout.world))
        self.environment.setdefault("VLLM_CPU_OMP_THREADS_BIND", cores)
        self.start_rank(0)


def two_canaries(directory: Path) -> Path:
    """glm-tiny with the canaries that say most."""
    yaml = YAML()
    data = yaml.load(recipe_path("glm-tiny").read_text())
    data["name"] = "small"
    data["canaries"] = [
        one for one in data["canaries"] if one.get("name") == "sum" or one["probe"] == "ranks"
    ]
    path = directory / "small.yaml"
    with path.open("w") as file:
        yaml.dump(data, file)
    return path


def test_up_in_lockstep(tmp_path: Path) -> None:
    """The command that people type: proven ready, told apart from mp, and gone after `down`."""
    place = Place(tmp_path, free_port(), "small")
    recipe = str(two_canaries(tmp_path))
    place.up(recipe, "--backend", "lockstep")
    record = place.record()
    assert record.state is State.READY
    assert record.plan["backend"] == "lockstep"
    secret = Path(record.scratch) / "secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert "Worker_TP1" in place.run("status", "--json").stdout
    again = place.run("up", recipe, "--port", str(place.port))
    assert again.returncode == 2
    assert "by lockstep instead of mp" in again.stderr
    down = place.run("down", "small")
    assert down.returncode == 0, down.stdout + down.stderr
    place.assert_nothing_left(record)
    assert not secret.exists()


def test_ranks_with_other_settings_end_before_they_load(checkpoint: Path, tmp_path: Path) -> None:
    ranks = Different(checkpoint, Layout(2, 1), tmp_path)
    ranks.start()
    try:
        assert [process.wait(120) for process in ranks.processes] == [1, 1]
    finally:
        ranks.stop()
    for log in logs(ranks):
        assert "differs from rank 0 in configuration" in log
        assert "configuration.scheduler_config.max_num_seqs: 8 on rank 0, 9 there" in log
        assert "Starting to load model" not in log


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((2, 2, 1), "WORLD_SIZE=2, but the layout has 4 ranks: tensor parallel size 2 x pipe"),
        ((2, 1, 2), "--data-parallel-size 2: lockstep has one scheduler"),
    ],
)
def test_a_layout_that_is_not_the_ranks(sizes: tuple[int, int, int], message: str) -> None:
    tp, pp, dp = sizes
    parallel = SimpleNamespace(
        tensor_parallel_size=tp, pipeline_parallel_size=pp, data_parallel_size=dp, world_size=tp * pp
    )
    settings = Settings(0, 2, 0, "127.0.0.1", 29600, "127.0.0.1", b"s" * 32)
    with pytest.raises(LockstepError, match=message):
        check_layout(parallel, settings)
    parallel.world_size, parallel.data_parallel_size = 2, 1
    check_layout(parallel, settings)


class Different(LockstepRanks):
    """Rank 1 has another flag."""

    def command(self, rank: int) -> list[str]:
        """As always, and one more word."""
        return [*super().command(rank), *(["--max-num-seqs", "9"] if rank else [])]


class Streams:
    """Long streams, and how each of them ended."""

    def __init__(self, ranks: Ranks, count: int) -> None:
        self.errors: list[str] = []
        self.begun = [threading.Event() for _ in range(count)]
        self.threads = [threading.Thread(target=self._run, args=(ranks, number)) for number in range(count)]
        for thread in self.threads:
            thread.start()
        assert all(event.wait(60) for event in self.begun)

    def _run(self, ranks: Ranks, number: int) -> None:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{ranks.port}/v1", api_key="none", max_retries=0)
        try:
            for _ in client.completions.create(
                model="glm-tiny",
                prompt=[10 + number] * 9,
                max_tokens=1900,
                stream=True,
                timeout=60,
                extra_body={"ignore_eos": True},
            ):
                self.begun[number].set()
        except (openai.APIError, httpx.HTTPError) as error:
            self.errors.append(repr(error))

    def join(self, seconds: float) -> None:
        """Every stream must have ended with an error by then."""
        end = time.monotonic() + seconds
        for thread in self.threads:
            thread.join(max(end - time.monotonic(), 0))
        assert not any(thread.is_alive() for thread in self.threads), "a client waits for ever"
        assert len(self.errors) == len(self.threads), self.errors


def kill_and_watch(ranks: LockstepRanks, rank: int) -> list[int]:
    """Kill a rank's main process under load; the exit codes once all processes of all ranks are gone."""
    family = [
        member
        for process in ranks.processes
        for member in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    ]
    shared = ranks.shared_memory()
    streams = Streams(ranks, 8)
    ranks.processes[rank].kill()
    begun = time.monotonic()
    streams.join(END_LIMIT)
    codes = [process.wait(max(begun + END_LIMIT - time.monotonic(), 0.1)) for process in ranks.processes]
    _, alive = psutil.wait_procs(family, timeout=max(begun + END_LIMIT - time.monotonic(), 0.1))
    assert alive == []
    print(f"rank {rank} killed: all gone after {time.monotonic() - begun:.1f} s")
    assert not left_behind(shared)
    return codes


def test_a_killed_rank_0_ends_all(served: LockstepRanks) -> None:
    """Its engine and worker do not stay either, though nobody but the kernel ends them. (A killed follower is
    in tests/lab/test_lockstep_nodes.py.)"""
    assert kill_and_watch(served, 0) == [-signal.SIGKILL, RANK_0_GONE]
    assert "the API server is gone" in served.log(0)
    assert "rank 0 is gone" in served.log(1)


def logs(ranks: Ranks) -> list[str]:
    return [ranks.log(rank) for rank in range(ranks.layout.world)]
