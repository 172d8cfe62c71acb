"""Drafts from the text itself, with the model in two stages: nothing changes but the speed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.engine.ranks import Layout, Ranks
from tests.engine.reference import Reference
from tests.engine.test_context import configure
from tests.engine.test_parity import REGRET_BOUND, ask, described
from tools.glm_tiny.prompts import FIXED_PROMPTS, FREE_PROMPTS, copies

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}


@pytest.fixture(scope="module")
def drafting(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Two stages with n-gram drafts."""
    flags = {"speculative-config": json.dumps(NGRAM)}
    with Ranks(checkpoint, Layout(1, 2), tmp_path_factory.mktemp("drafting"), flags=flags) as running:
        yield running


def counted(ranks: Ranks) -> tuple[int, int]:
    """(drafted, accepted) tokens since the start."""
    text = httpx.get(f"http://127.0.0.1:{ranks.port}/metrics").text
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0) + sample.value
    return (
        int(totals["vllm:spec_decode_num_draft_tokens_total"]),
        int(totals["vllm:spec_decode_num_accepted_tokens_total"]),
    )


@pytest.mark.timeout(600)
def test_ngram_with_two_stages_loses_nothing_on_50_prompts(drafting: Ranks, reference: Reference) -> None:
    def tokens(text: str) -> int:
        return len(reference.tokenizer(text)["input_ids"])

    prompts = (*FIXED_PROMPTS, *FREE_PROMPTS, *copies(tokens).prompts[:10])
    assert len(prompts) == 50
    answers = ask(drafting, reference, prompts)
    found = [
        (described(reference, prompt, place), place.regret)
        for prompt, (ids, out) in zip(prompts, answers, strict=True)
        for place in reference.disagreements(ids, out)
    ]
    drafted, accepted = counted(drafting)
    print(f"\nn-gram, 2 stages, 50 prompts: {accepted} of {drafted} drafted tokens accepted")
    print(f"{len(found)} places where transformers' best token is another")
    assert all(regret <= REGRET_BOUND for _, regret in found), "\n".join(line for line, _ in found)
    assert drafted > 300
    assert accepted > drafted // 4
    for prompt, (_, out) in zip(prompts, answers, strict=True):
        assert reference.ends(out, prompt.max_tokens), prompt.user


@pytest.mark.parametrize(("stages", "batches"), [(1, 1), (2, 1), (4, 1)])
def test_one_batch_is_in_flight_where_tokens_are_drafted(checkpoint: Path, stages: int, batches: int) -> None:
    config = configure(
        checkpoint,
        2048,
        pipeline_parallel_size=stages,
        distributed_executor_backend="mp",
        speculative_config=NGRAM,
    )
    assert config.max_concurrent_batches == batches


def test_without_drafts_every_stage_has_a_batch(checkpoint: Path) -> None:
    config = configure(checkpoint, 2048, pipeline_parallel_size=2, distributed_executor_backend="mp")
    assert config.max_concurrent_batches == 2
