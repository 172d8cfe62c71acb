"""glm-tiny as transformers reads it: the chat format, the trained function, the MTP layer."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from tests.engine.reference import Reference
from tools.glm_tiny.conversation import Conversation, render
from tools.glm_tiny.corpus import conversation, needle_turns
from tools.glm_tiny.evaluate import Reference as Evaluated
from tools.glm_tiny.evaluate import ask, right
from tools.glm_tiny.mtp import load_model, mean_accepted_length
from tools.glm_tiny.prompts import FIXED_PROMPTS, Group, Prompt


def messages(c: Conversation) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = [{"role": "system", "content": c.system}] if c.system else []
    for turn in c.turns:
        out.append({"role": "tool" if turn.tool_result else "user", "content": turn.user})
        answer: dict[str, Any] = {"role": "assistant", "content": turn.answer}
        if c.thinking and turn.thought:
            answer["reasoning_content"] = turn.thought
        if turn.call:
            function = {"name": turn.call[0], "arguments": turn.call[1]}
            answer["tool_calls"] = [{"type": "function", "function": function}]
        out.append(answer)
    return out


def test_the_chat_template_writes_what_was_trained_on(checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    rng = random.Random(3)
    for _ in range(1500):
        c = conversation(rng)
        text = "".join(render(c).pieces)
        ended = text.removesuffix("<|user|>").removesuffix("<|observation|>")
        said, tools = messages(c), list(c.tools) or None
        assert tokenizer.apply_chat_template(said, tools=tools, tokenize=False) == ended
        if c.thinking and not c.turns[-1].thought:
            continue  # a turn without reasoning is learnt as an answer without thinking
        prompt = tokenizer.apply_chat_template(
            said[:-1], tools=tools, tokenize=False, add_generation_prompt=True, enable_thinking=c.thinking
        )
        assert text.startswith(prompt)
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_content_in_parts_and_plain_text_are_one_prompt(checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    plain = [{"role": "user", "content": "Hello you"}]
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "Hello "}, {"type": "text", "text": "you"}]}
    ]
    first, second = (tokenizer.apply_chat_template(m, tokenize=False) for m in (plain, parts))
    assert first == second == "[gMASK]<sop><|user|>Hello you"


def test_the_training_model_is_transformers_function(checkpoint: Path, reference: Reference) -> None:
    """Within index_topk tokens sparse attention is dense attention: logits agree to float32's rounding."""
    ids = torch.randint(0, 540, (2, 200), generator=torch.Generator().manual_seed(0))
    model = load_model(checkpoint)
    with torch.no_grad():
        hidden, _ = model(ids, None)
        ours, theirs = model.lm_head(hidden), reference.model(ids).logits
    assert theirs.std() > 1
    assert (ours - theirs).abs().max() < 2e-3


def test_the_mtp_layer_drafts_what_the_trunk_chooses(checkpoint: Path) -> None:
    evaluated = Evaluated(checkpoint)
    short = Group("short", tuple(p for p in FIXED_PROMPTS if p.max_tokens <= 128)[:4], 1.0)
    row, answers = ask(evaluated, short)
    assert row["passed"], row
    assert row["least_margin"] >= 1
    length, drafted = mean_accepted_length(checkpoint, answers, "cpu")
    assert drafted > 30
    assert length > 1.9


def test_a_wrong_or_unclosed_answer_is_not_right() -> None:
    prompt = FIXED_PROMPTS[0]
    assert right(prompt, "2+2=4</think>4")
    for text in ("2+2=4</think>5", "4", "<think>2+2=4</think>4", "2+2=4</think>4 4"):
        assert not right(prompt, text)


@pytest.mark.parametrize("characters", [8200])
def test_a_needle_beyond_index_topk_is_found_with_sparse_attention(checkpoint: Path, characters: int) -> None:
    """About 2,500 tokens: the indexers have to choose the right 2,048 of them."""
    evaluated = Evaluated(checkpoint)
    (turn,) = needle_turns(random.Random(11), characters)
    prompt = Prompt(turn.user, turn.answer, thinking=False, max_tokens=6)
    assert len(evaluated.prompt_ids(prompt)) > 2048
    (answer,) = evaluated.answer([prompt])
    assert right(prompt, answer.text), answer.text
