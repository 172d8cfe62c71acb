"""What a rank is doing, read from recorded logs of vLLM 0.32."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.launch.phases import Phase, Progress, advance

RECORDED = Path(__file__).with_name("recorded")


def steps(name: str) -> list[str]:
    """What is shown of a recorded log, each thing once."""
    progress, seen = Progress(), [str(Progress())]
    for line in (RECORDED / name).read_text().replace("\r", "\n").split("\n"):
        progress = advance(progress, line)
        if str(progress) != seen[-1]:
            seen.append(str(progress))
    return seen


def test_rank_0_of_a_start_that_served() -> None:
    assert steps("tp2-served-rank-0.log") == [
        "starting Python",
        "importing vLLM",
        "reading the model's configuration",
        "starting the engine",
        "joining the group",
        "loading weights",
        "loading weights, 0 of 1 shards",
        "loading weights, 1 of 1 shards",
        "building the KV cache",
        "warming up, room for 29,120 tokens",
        "opening the API",
        "serving",
    ]


def test_a_follower_of_a_start_that_served() -> None:
    assert steps("tp2-served-rank-1.log") == [
        "starting Python",
        "importing vLLM",
        "reading the model's configuration",
        "starting the engine",
        "joining the group",
        "loading weights",
        "building the KV cache",
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_start_whose_weights_do_not_fit_ends_while_loading(rank: int) -> None:
    assert steps(f"tp2-wrong-shape-rank-{rank}.log")[-1].startswith("loading weights")


@given(st.lists(st.text(max_size=80), max_size=30))
def test_any_text_is_read_and_phases_only_go_forward(lines: list[str]) -> None:
    progress = Progress()
    reached = [progress.phase]
    for line in lines:
        progress = advance(progress, line)
        reached.append(progress.phase)
    assert all(before <= after for before, after in pairwise(reached))


def test_a_blank_line_says_nothing() -> None:
    assert advance(Progress(), "  \t") == Progress()


def test_an_earlier_phase_does_not_come_back() -> None:
    progress = advance(Progress(Phase.WARMING), "INFO [x.py:1] Starting to load model /m...")
    assert progress == Progress(Phase.WARMING)
