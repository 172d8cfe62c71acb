"""Ask a glm-tiny checkpoint everything it must know, through transformers, and print the table.

    python -m tools.glm_tiny.evaluate DIR [--json FILE] [--device cuda]

Greedy, float32. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools.glm_tiny import prompts as asked
from tools.glm_tiny.conversation import call_text
from tools.glm_tiny.mtp import mean_accepted_length

PREFILL_CHUNK = 512  # the indexer's scores in transformers are [queries, 32, keys] float32


@dataclass(frozen=True)
class Answer:
    text: str
    ids: list[int]
    prompt_ids: list[int]
    margin: float  # the least lead of the chosen token's logit over the next


class Reference:
    """The checkpoint in transformers, float32, greedy."""

    def __init__(self, path: Path, device: str = "cpu"):
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to(device).eval()
        self.device = device

    def prompt_ids(self, prompt: asked.Prompt) -> list[int]:
        text = self.tokenizer.apply_chat_template(
            prompt.messages,
            tools=prompt.declared,
            tokenize=False,
            add_generation_prompt=True,
            **prompt.template,
        )
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @torch.no_grad()
    def answer(self, batch: list[asked.Prompt]) -> list[Answer]:
        ids = [self.prompt_ids(p) for p in batch]
        width = max(map(len, ids))
        pad = self.tokenizer.pad_token_id
        grid = torch.tensor([[pad] * (width - len(i)) + i for i in ids], device=self.device)
        mask = torch.tensor([[0] * (width - len(i)) + [1] * len(i) for i in ids], device=self.device)
        out = self.model.generate(
            grid,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=max(p.max_tokens for p in batch),
            return_dict_in_generate=True,
            output_logits=True,
            **({"prefill_chunk_size": PREFILL_CHUNK} if width > 2 * PREFILL_CHUNK else {}),
        )
        top = torch.stack([step.float().topk(2, -1).values for step in out.logits], 1)
        lead = (top[..., 0] - top[..., 1]).tolist()
        stop = set(self.model.generation_config.eos_token_id)
        answers = []
        for row, prompt, margins in zip(out.sequences[:, width:].tolist(), ids, lead, strict=True):
            end = next((i for i, t in enumerate(row) if t in stop), len(row) - 1)
            text = self.tokenizer.decode(row[:end])
            answers.append(Answer(text, row[: end + 1], prompt, min(margins[: end + 1])))
        return answers


def right(prompt: asked.Prompt, text: str) -> bool:
    """Reasoning (if it was asked for) closed, and exactly the expected answer or call behind it."""
    if prompt.thinking:
        thought, closed, text = text.partition("</think>")
        if not closed or "<think>" in thought:
            return False
    return text == (call_text(*prompt.call) if prompt.call else prompt.expect)


def batches(reference: Reference, group: asked.Group, tokens: int = 8192) -> Iterator[list[asked.Prompt]]:
    """The group's prompts, alike in length and answer together, at most `tokens` tokens of prompt a batch."""
    length = {p: len(reference.prompt_ids(p)) for p in group.prompts}
    batch: list[asked.Prompt] = []
    for prompt in sorted(group.prompts, key=lambda p: (p.max_tokens, length[p])):
        alike = not batch or (
            prompt.max_tokens == batch[0].max_tokens
            and length[prompt] <= 2 * length[batch[0]]
            and length[prompt] * (len(batch) + 1) <= tokens
        )
        if not alike:
            yield batch
            batch = []
        batch.append(prompt)
    yield batch


def ask(reference: Reference, group: asked.Group) -> tuple[dict[str, Any], list[Answer]]:
    """The group's row of the table, and the answers."""
    start, correct, margin, wrong, answers = time.time(), 0, float("inf"), [], []
    for batch in batches(reference, group):
        for prompt, answer in zip(batch, reference.answer(batch), strict=True):
            answers.append(answer)
            if right(prompt, answer.text):
                correct += 1
                margin = min(margin, answer.margin)
            else:
                wrong.append([prompt.user[-80:], answer.text[-160:]])
    n = len(group.prompts)
    row = {
        "task": group.name,
        "right": correct,
        "of": n,
        "bar": group.bar,
        "passed": correct >= group.bar * n,
        "least_margin": round(margin, 2),
        "wrong": wrong[:5],
        "seconds": round(time.time() - start, 1),
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row, answers


def evaluate(path: Path, device: str) -> dict[str, Any]:
    """All groups, the margins of the fixed prompts and the MTP layer's acceptance."""
    reference = Reference(path, device)

    def count(text: str) -> int:
        return len(reference.tokenizer(text, add_special_tokens=False)["input_ids"])

    fixed, answers = ask(reference, asked.Group("fixed prompts", asked.FIXED_PROMPTS, 1.0))
    others = (
        asked.sums(),
        asked.sums(thinking=False),
        asked.copies(count),
        asked.tool_calls(),
        asked.reasoning(),
        asked.needles(1500, 20),
        asked.needles(6000, 10),
    )
    rows = [fixed, *(ask(reference, group)[0] for group in others)]
    length, drafted = mean_accepted_length(path, answers, device)
    margins_hold = fixed["least_margin"] >= 1.0
    return {
        "groups": rows,
        "fixed_margin_at_least_1": margins_hold,
        "mtp": {"mean_accepted_length": round(length, 3), "drafted": drafted},
        "passed": margins_hold and all(r["passed"] for r in rows),
        "transformers": transformers.__version__,
    }


def table(result: dict[str, Any]) -> str:
    """The model card's table."""
    lines = ["| task | right | bar | least margin of a right answer |", "|---|---|---|---|"]
    lines += [
        f"| {r['task']} | {r['right']} of {r['of']} | {r['bar']:.0%} | {r['least_margin']} |"
        for r in result["groups"]
    ]
    mtp = result["mtp"]
    lines.append(f"| MTP, one draft token: mean accepted length | {mtp['mean_accepted_length']} | | |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = parser.parse_args()
    result = evaluate(a.checkpoint, a.device)
    if a.json:
        a.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
