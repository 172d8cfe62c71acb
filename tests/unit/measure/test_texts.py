"""Prompts of a kind and a length."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmspark.measure.texts import KINDS, prompt


@given(st.sampled_from(KINDS), st.text(max_size=8), st.integers(0, 5000))
@settings(max_examples=40)
def test_a_prompt_is_as_long_as_asked_and_the_same_again(kind: str, seed: str, characters: int) -> None:
    text = prompt(kind, seed, characters)
    assert len(text) >= characters
    assert len(text) < characters + 900
    assert "{name}" not in text
    assert text == prompt(kind, seed, characters)


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_prompts_begin_alike(kind: str) -> None:
    prompts = [prompt(kind, str(seed), 3000) for seed in range(200)]
    beginnings = {text[:14] for text in prompts}
    assert len(beginnings) == len(prompts)


def test_kinds_differ() -> None:
    assert len({prompt(kind, "1", 500) for kind in KINDS}) == len(KINDS)
