"""TP1, TP2 and PP2 say what transformers says."""

from __future__ import annotations

import pytest

from tests.engine.ranks import Ranks
from tests.engine.reference import Reference
from tools.glm_tiny.prompts import FIXED_PROMPTS, FREE_PROMPTS, Prompt

REGRET_BOUND = 0.02


def ask(ranks: Ranks, reference: Reference, prompts: tuple[Prompt, ...]) -> list[tuple[list[int], list[int]]]:
    """(prompt ids, answer ids) of each prompt, all asked at once."""
    asked = [(reference.prompt_ids(prompt), prompt.max_tokens) for prompt in prompts]
    return [(ids, out) for (ids, _), out in zip(asked, ranks.complete(asked), strict=True)]


@pytest.mark.timeout(600)
def test_fixed_prompts_token_for_token(ranks: Ranks, reference: Reference) -> None:
    wrong = []
    for prompt, (ids, out) in zip(FIXED_PROMPTS, ask(ranks, reference, FIXED_PROMPTS), strict=True):
        expected = reference.greedy(ids, prompt.max_tokens)
        if out != expected:
            wrong.append(
                f"{prompt.user[:60]!r}:\n  {ranks.layout}: {reference.tokenizer.decode(out)!r}\n"
                f"  transformers: {reference.tokenizer.decode(expected)!r}"
            )
    assert len(FIXED_PROMPTS) == 20
    assert not wrong, "\n".join(wrong)


@pytest.mark.timeout(600)
def test_free_prompts_differ_at_ties_only(
    ranks: Ranks, reference: Reference, record_property: pytest.RecordProperty
) -> None:
    places, worst = [], 0.0
    for prompt, (ids, out) in zip(FREE_PROMPTS, ask(ranks, reference, FREE_PROMPTS), strict=True):
        for place in reference.disagreements(ids, out):
            worst = max(worst, place.regret)
            chosen, best = (reference.tokenizer.decode([token]) for token in (place.chosen, place.best))
            places.append(
                f"{prompt.user!r} token {place.position}: {chosen!r} instead of {best!r}, "
                f"regret {place.regret:.5f}"
            )
    print(f"\n{ranks.layout}: {len(places)} places where transformers' best token is another")
    for line in places:
        print(f"  {line}")
    record_property("places", places)
    assert len(FREE_PROMPTS) == 20
    assert worst <= REGRET_BOUND, "\n".join(places)
