"""The policy that chooses how many tokens to draft, on made-up texts and machines."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmspark.engine.draft_policy import MEMORY, DraftPolicy, candidates

# Chance that the draft at each place is accepted if those before were, by kind of text; after what glm-tiny's
# drafter does by kind (docs/gpu-runs.md).
TEXTS = {
    "counting": [0.97] * 8,
    "copies": [0.47, 0.5, 0.6, 0.6, 0.7, 0.8, 0.8, 0.8],
    "sums": [0.94, 0.97, 0.98, 0.98, 0.95, 0.95, 0.95, 0.95],
    "story": [0.6, 0.5, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4],
    "nothing": [0.02] * 8,
}
# Seconds of a step by number of drafts: reported for GLM-5.3-Flash on four Sparks (34.6 ms + 4.12 ms a token
# verified, techniques), a GPU where verifying is cheap, and a CPU where it is dear.
MACHINES: dict[str, Callable[[int], float]] = {
    "sparks": lambda drafts: 0.0346 + 0.00412 * (1 + drafts),
    "cheap": lambda drafts: 0.003 + (0.0006 if drafts else 0) + 0.00003 * drafts,
    "dear": lambda drafts: 0.01 + 0.004 * drafts,
}


def serve(
    choose: DraftPolicy | int,
    text: Callable[[int], list[float]],
    seconds: Callable[[int], float],
    steps: int,
    requests: int = 2,
) -> float:
    """Tokens a second. The policy is told as vLLM tells it: a step verifies what the one before drafted."""
    rng, time, tokens, before, same = random.Random(7), 0.0, 0, 0, False
    for step in range(steps):
        drafts = choose if isinstance(choose, int) else choose[requests]
        accepted = []
        for _ in range(requests):
            count = 0
            while count < before and rng.random() < text(step)[count]:
                count += 1
            accepted.append(count)
        took = seconds(before) * (1 + 0.03 * rng.gauss(0, 1))
        time, tokens = time + took, tokens + sum(accepted) + requests
        if isinstance(choose, DraftPolicy):
            choose.observe(requests, before, accepted, took if same and drafts == before else None)
        before, same = drafts, drafts == before
    return tokens / time


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("text", TEXTS)
def test_it_is_nearly_as_fast_as_the_best_fixed_number(text: str, machine: str) -> None:
    def share(_step: int) -> list[float]:
        return TEXTS[text]

    fixed = {k: serve(k, share, MACHINES[machine], 1500) for k in candidates(8)}
    found = serve(DraftPolicy(candidates(8)), share, MACHINES[machine], 3000)
    assert found >= 0.95 * max(fixed.values())
    assert found >= 0.97 * fixed[0]


def test_it_follows_a_text_that_changes() -> None:
    """Counting, then nothing that can be drafted, then counting again."""
    policy = DraftPolicy(candidates(8))
    chosen = []
    for text in ("counting", "nothing", "counting"):
        serve(policy, lambda _step, text=text: TEXTS[text], MACHINES["dear"], 2500)  # type: ignore[misc]
        chosen.append(policy.summary()["batches"]["2-3"]["drafts"])  # type: ignore[index]
    assert chosen[0] >= 4
    assert chosen[1] == 0
    assert chosen[2] >= 4


def test_batches_of_other_sizes_are_other_machines() -> None:
    policy = DraftPolicy(candidates(8))
    for _ in range(300):
        for size, cost in ((1, 0.0001), (64, 0.05)):
            drafts = policy[size]
            policy.observe(size, drafts, [drafts // 2] * size, 0.01 + cost * drafts)
    assert policy[1] >= 4
    assert policy[64] == 0


def test_an_alarm_where_acceptance_collapses() -> None:
    policy = DraftPolicy([4])
    for _ in range(10 * MEMORY):
        policy.observe(1, 4, [3], 0.01)
    assert not policy.collapsed
    for _ in range(4 * MEMORY):
        policy.observe(1, 4, [0], 0.01)
    assert policy.collapsed
    for _ in range(4 * MEMORY):
        policy.observe(1, 4, [3], 0.01)
    assert not policy.collapsed


def test_a_pause_is_no_step() -> None:
    policy = DraftPolicy([0, 4])
    for step in range(200):
        policy.observe(1, policy[1], [2] if policy[1] else [0], 5.0 if step % 40 == 39 else 0.01)
    assert policy[1] == 4
    assert all(value < 20 for batch in policy.summary()["batches"].values() for value in batch["ms"].values())  # type: ignore[attr-defined]


@pytest.mark.parametrize("bad", [[], [0], [-1, 2]])
def test_numbers_to_choose_from(bad: list[int]) -> None:
    with pytest.raises(ValueError, match="no numbers of drafts"):
        DraftPolicy(bad)
    assert candidates(8) == [0, 1, 2, 4, 8]
    assert candidates(7) == [0, 1, 2, 4, 7]
    assert candidates(1) == [0, 1]


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 300),
            st.integers(0, 8),
            st.lists(st.integers(0, 9), max_size=5),
            st.none() | st.floats(0, 100),
        ),
        max_size=200,
    )
)
def test_whatever_it_is_told_it_chooses_one_of_its_numbers(
    steps: list[tuple[int, int, list[int], float | None]],
) -> None:
    policy = DraftPolicy(candidates(8))
    for size, drafts, accepted, seconds in steps:
        policy.observe(size, drafts, accepted, seconds)
        assert policy[size] in policy.choices
    assert policy.summary()
