"""The policy in vLLM: it learns from the scheduler's steps, and changes nothing that is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glmspark.engine import registry
from glmspark.engine.draft_policy import DraftPolicy, candidates
from glmspark.engine.patch import PatchRefusedError, State
from glmspark.engine.patches import draft_policy
from tests.engine.reference import Reference
from tests.engine.test_preconditions import CPU, REFUSED, altered

SCHEDULER = "vllm.v1.core.sched.scheduler"


@pytest.mark.timeout(280)
def test_it_learns_while_serving_and_answers_stay(
    checkpoint: Path, reference: Reference, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.drafts_chosen", str(checkpoint), str(tmp_path / "found")],
        env={**os.environ, "GLMSPARK_DRAFT_POLICY": "auto", "TORCH_COMPILE_DISABLE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found").read_text())
    assert found["policy"] == "DraftPolicy"
    wanted = [reference.greedy(ids, 120) for ids in found["asked"]]
    assert found["said"] == [wanted] * 3
    knows = found["knows"]
    assert knows["accepted"][0] > 0
    timed = {number for batch in knows["batches"].values() for number in batch["ms"]}
    assert {"0", "4"} <= timed, knows


# --- what it is told ----------------------------------------------------------------------------------------


def step(
    watch: draft_policy.Watch,
    policy: DraftPolicy,
    drafted: dict[str, int],
    sampled: dict[str, int],
    next_: int,
) -> None:
    """A step that verifies `drafted` tokens of each request, samples so many, and drafts `next_` for each."""
    watch.step(
        policy,
        SimpleNamespace(
            num_spec_tokens_to_schedule=next_,
            num_scheduled_tokens={name: 1 + count for name, count in drafted.items()},
            scheduled_spec_decode_tokens={name: [-1] * n for name, n in drafted.items() if n},
        ),
        SimpleNamespace(
            sampled_token_ids=[[0] * count for count in sampled.values()],
            req_id_to_index={name: row for row, name in enumerate(sampled)},
        ),
    )


class Told:
    """A policy that remembers what it was told."""

    collapsed = False

    def __init__(self) -> None:
        self.told: list[tuple[int, int, list[int], bool]] = []

    def observe(self, size: int, drafts: int, accepted: list[int], seconds: float | None) -> None:
        self.told.append((size, drafts, accepted, seconds is not None))


def test_a_step_is_what_the_one_before_drafted() -> None:
    policy, watch = Told(), draft_policy.Watch()
    told: Any = policy
    step(watch, told, {"a": 0, "b": 0}, {"a": 1, "b": 1}, 4)  # nobody knows what was before
    step(watch, told, {"a": 4, "b": 4}, {"a": 3, "b": 1}, 4)
    step(watch, told, {"a": 4, "b": 4}, {"b": 5, "a": 1}, 2)
    step(watch, told, {"a": 2, "b": 2}, {"a": 1, "b": 1}, 2)
    assert policy.told == [(2, 4, [2, 0], True), (2, 4, [0, 4], False), (2, 2, [0, 0], True)]
    watch.rest()
    step(watch, told, {"a": 2}, {"a": 1}, 2)
    assert len(policy.told) == 3


def test_a_step_with_a_prompt_is_no_step() -> None:
    policy, watch = Told(), draft_policy.Watch()
    told: Any = policy
    step(watch, told, {"a": 4}, {"a": 1}, 4)
    watch.step(
        told,
        SimpleNamespace(
            num_spec_tokens_to_schedule=4,
            num_scheduled_tokens={"a": 5, "b": 300},
            scheduled_spec_decode_tokens={"a": [1, 2, 3, 4]},
        ),
        SimpleNamespace(sampled_token_ids=[[1], [2]], req_id_to_index={"a": 0, "b": 1}),
    )
    assert policy.told == []


# --- how it is asked for ------------------------------------------------------------------------------------


def test_all_numbers_are_offered_at_all_sizes() -> None:
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    table = draft_policy.offered(8, 64)
    lookup = build_dynamic_sd_schedule_lookup(list(table), 64, 8)
    assert set(lookup[1:]) == set(candidates(8))
    for number in candidates(8):
        assert max(size for size in range(1, 65) if lookup[size] == number) > 59


def config(**more: Any) -> Any:
    speculation = SimpleNamespace(num_speculative_tokens=4, num_speculative_tokens_per_batch_size=None)
    made = SimpleNamespace(
        speculative_config=speculation,
        parallel_config=SimpleNamespace(data_parallel_size=1),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
    )
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_a_table_of_one_s_own_has_the_last_word() -> None:
    own = config()
    own.speculative_config.num_speculative_tokens_per_batch_size = [(1, 8, 2)]
    draft_policy.offer_choices(own)
    assert own.speculative_config.num_speculative_tokens_per_batch_size == [(1, 8, 2)]
    draft_policy.offer_choices(config(speculative_config=None))
    with pytest.raises(PatchRefusedError, match="choose apart"):
        draft_policy.offer_choices(config(parallel_config=SimpleNamespace(data_parallel_size=2)))


def test_a_typing_error_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(draft_policy.VARIABLE, "yes")
    with pytest.raises(PatchRefusedError, match="auto or fixed"):
        draft_policy.PATCH.needed(CPU)


@pytest.mark.parametrize(
    ("pattern", "replacement", "seen"),
    [
        (r"build_dynamic_sd_schedule_lookup\(\n", "other(\n", "makes no table"),
        (
            r"self\.dynamic_sd_lookup\[\s*len\(num_scheduled_tokens\)\s*\]",
            "self.other()",
            "does not look the number",
        ),
        (r"num_spec_tokens_to_schedule=num", "drafts=num", "does not hand"),
        (
            r"def update_from_output\(\n        self,\n",
            "def update_from_output(\n        self, more,\n",
            "takes (self, more",
        ),
    ],
)
def test_an_altered_scheduler(
    pattern: str, replacement: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(draft_policy.VARIABLE, "auto")
    outcome = registry.judge(draft_policy.PATCH, CPU, altered(SCHEDULER, pattern, replacement))
    assert outcome.state is REFUSED is State.REFUSED
    assert seen in outcome.why
