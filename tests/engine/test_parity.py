"""TP1, TP2 and PP2 say what transformers says."""

from __future__ import annotations

import pytest

from tests.engine.ranks import Ranks
from tests.engine.reference import Place, Reference
from tools.glm_tiny.prompts import FIXED_PROMPTS, FREE_PROMPTS, Prompt

REGRET_BOUND = 0.02


def ask(ranks: Ranks, reference: Reference, prompts: tuple[Prompt, ...]) -> list[tuple[list[int], list[int]]]:
    """(prompt ids, answer ids) of each prompt, all asked at once."""
    asked = [(reference.prompt_ids(prompt), prompt.max_tokens) for prompt in prompts]
    return [(ids, out) for (ids, _), out in zip(asked, ranks.complete(asked), strict=True)]


def described(reference: Reference, prompt: Prompt, place: Place) -> str:
    """A place where the engines differ, for people."""
    chosen, best = (reference.tokenizer.decode([token]) for token in (place.chosen, place.best))
    return f"{prompt.user[:60]!r} token {place.position}: {chosen!r}, not {best!r}, regret {place.regret:.5f}"


@pytest.mark.timeout(600)
def test_fixed_prompts_token_for_token(ranks: Ranks, reference: Reference) -> None:
    assert len(FIXED_PROMPTS) == 20
    answers = ask(ranks, reference, FIXED_PROMPTS)
    wrong = []
    for prompt, (ids, out) in zip(FIXED_PROMPTS, answers, strict=True):
        wrong += [described(reference, prompt, place) for place in reference.disagreements(ids, out)]
        if not reference.ends(out, prompt.max_tokens):
            wrong.append(
                f"{prompt.user[:60]!r} ends after {len(out)} tokens: {reference.tokenizer.decode(out)!r}"
            )
    assert not wrong, f"{ranks.layout}:\n" + "\n".join(wrong)
    # What `disagreements` finds in one pass is what decoding through the cache gives.
    for prompt, (ids, out) in list(zip(FIXED_PROMPTS, answers, strict=True))[:3]:
        assert out == reference.greedy(ids, prompt.max_tokens)


@pytest.mark.timeout(600)
def test_free_prompts_differ_at_ties_only(ranks: Ranks, reference: Reference) -> None:
    assert len(FREE_PROMPTS) == 20
    found = [
        (described(reference, prompt, place), place.regret)
        for prompt, (ids, out) in zip(FREE_PROMPTS, ask(ranks, reference, FREE_PROMPTS), strict=True)
        for place in reference.disagreements(ids, out)
    ]
    print(f"\n{ranks.layout}: {len(found)} places where transformers' best token is another")
    for line, _ in found:
        print(f"  {line}")
    assert all(regret <= REGRET_BOUND for _, regret in found), "\n".join(line for line, _ in found)
