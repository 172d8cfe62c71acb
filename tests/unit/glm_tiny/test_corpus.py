"""The corpus: one answer per prompt, the same text for the same seed, no sum that is kept for the test."""

import json
import random
import re
from pathlib import Path

import pytest

import glmspark
from tools.glm_tiny import prompts
from tools.glm_tiny.config import SHAPE, model_config
from tools.glm_tiny.conversation import Conversation, Turn, call_text, render
from tools.glm_tiny.corpus import conversation, needle_text
from tools.glm_tiny.tasks import held_out, random_text, sum_thought, sums

CHECKPOINT = Path(glmspark.__file__).parent / "recipes" / "checkpoints" / "glm-tiny"


def test_the_same_seed_gives_the_same_text() -> None:
    first = [render(conversation(random.Random(s))).pieces for s in range(200)]
    assert first == [render(conversation(random.Random(s))).pieces for s in range(200)]
    assert len({"".join(p) for p in first}) > 190


def test_a_prompt_has_one_answer() -> None:
    """Two answers to one prompt would leave the model unsure, and its margins thin."""
    seen: dict[str, str] = {}
    rng = random.Random(3)
    for _ in range(20_000):
        out = render(conversation(rng))
        for i, learn in enumerate(out.learn):
            if learn:
                context = "".join(out.pieces[:i])
                assert seen.setdefault(context, out.pieces[i]) == out.pieces[i], context


def test_sums_of_the_test_are_not_in_the_corpus() -> None:
    rng = random.Random(4)
    for _ in range(20_000):
        a, b = map(int, re.findall(r"\d+", sums(rng).user))
        assert not held_out(a, b)
    asked = [tuple(map(int, re.findall(r"\d+", p.user))) for p in prompts.sums().prompts]
    assert sum(held_out(a, b) for a, b in asked) == 150
    assert all(str(a + b) == p.expect for (a, b), p in zip(asked, prompts.sums().prompts, strict=True))


@pytest.mark.parametrize(
    ("a", "b", "thought"), [(2, 2, "2+2=4"), (37, 48, "7+8=15, 3+4+1=8"), (50, 4, "0+4=4, 5+0=5")]
)
def test_a_sum_is_reasoned_column_by_column(a: int, b: int, thought: str) -> None:
    assert sum_thought(a, b) == thought


def test_what_is_learnt_is_what_the_model_writes() -> None:
    call = Turn("Make the lamp red.", "", "I use set_lamp.", call=("set_lamp", {"colour": "red", "level": 3}))
    out = render(Conversation((Turn("Hi", "Hello!", "x"), call)))
    learnt = [p for p, flag in zip(out.pieces, out.learn, strict=True) if flag]
    assert learnt == [
        "Hello!",
        "<|user|>",
        "I use set_lamp.</think>",
        call_text("set_lamp", {"colour": "red", "level": 3}),
        "<|observation|>",
    ]
    assert call_text("f", {"a": "x", "b": [1]}) == (
        "<tool_call>f<arg_key>a</arg_key><arg_value>x</arg_value>"
        "<arg_key>b</arg_key><arg_value>[1]</arg_value></tool_call>"
    )
    without = render(Conversation((Turn("Hi", "Hello!", "x"),), thinking=False))
    assert "".join(without.pieces) == "[gMASK]<sop><|user|>Hi<|assistant|></think>Hello!<|user|>"


@pytest.mark.parametrize("length", [200, 5000])
def test_needles_are_in_their_text_once(length: int) -> None:
    for seed in range(50):
        text, found = needle_text(random.Random(seed), length, 4)
        assert len(text) >= length
        for name, code in found:
            assert text.count(f"The code of {name} is {code}.") == 1
            assert text.count(f"code of {name}") == 1


def test_random_texts_are_of_about_the_length_asked_for() -> None:
    rng = random.Random(5)
    for _ in range(500):
        assert 10 <= len(random_text(rng, 40)) <= 400


def test_the_packaged_config_is_the_one_in_the_code() -> None:
    stored = json.loads((CHECKPOINT / "config.json").read_text())
    added = json.loads((CHECKPOINT / "tokenizer.json").read_text())["added_tokens"]
    assert stored == model_config({t["content"]: t["id"] for t in added})
    assert len(SHAPE["index_topk_pattern"]) == SHAPE["num_hidden_layers"]


def test_the_checkpoint_is_small_and_its_card_states_measured_figures() -> None:
    assert sum(f.stat().st_size for f in CHECKPOINT.iterdir()) <= 12_000_000
    training = json.loads((CHECKPOINT / "training.json").read_text())
    assert training["parameters"] <= 6_000_000
    card = (CHECKPOINT / "README.md").read_text()
    assert training["command"] in card
    rows = re.findall(r"\| (\d+) of (\d+) \| (\d+)% \|", card)
    assert len(rows) == 8
    assert all(int(right) * 100 >= int(n) * int(bar) for right, n, bar in rows)
