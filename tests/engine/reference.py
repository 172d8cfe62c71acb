"""What transformers says in float32: the yardstick for every layout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools.glm_tiny.prompts import Prompt


@dataclass(frozen=True)
class Place:
    """Where another engine chose another token than transformers' best, after the same prefix.

    `regret` is transformers' best logit minus that of the token chosen.
    """

    position: int
    chosen: int
    best: int
    regret: float


class Reference:
    """A checkpoint in transformers, float32, greedy, one prompt at a time."""

    def __init__(self, checkpoint: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """The prompt as the chat template renders it."""
        text = self.tokenizer.apply_chat_template(
            prompt.messages,
            tools=prompt.declared,
            tokenize=False,
            add_generation_prompt=True,
            **prompt.template,
        )
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @torch.no_grad()
    def greedy(self, prompt_ids: list[int], max_tokens: int) -> list[int]:
        """The greedy continuation, token by token through the cache, up to and with the stop token."""
        grid = torch.tensor([prompt_ids])
        out = self.model.generate(
            grid, attention_mask=torch.ones_like(grid), do_sample=False, max_new_tokens=max_tokens
        )
        return list(out[0, len(prompt_ids) :].tolist())

    def ends(self, output_ids: list[int], max_tokens: int) -> bool:
        """Whether an output ends where greedy decoding ends: at its first stop token, or at the limit."""
        stop = set(self.model.generation_config.eos_token_id)
        inner = stop.intersection(output_ids[:-1])
        return not inner and (output_ids[-1] in stop or len(output_ids) == max_tokens)

    @torch.no_grad()
    def disagreements(self, prompt_ids: list[int], output_ids: list[int]) -> list[Place]:
        """Every place of `output_ids` where, after the same tokens, transformers' best is another.

        None means: this is transformers' greedy output, for by induction every prefix of it is.
        """
        grid = torch.tensor([prompt_ids + output_ids[:-1]])
        logits = self.model(grid, use_cache=False).logits[0, len(prompt_ids) - 1 :].float()
        chosen = torch.tensor(output_ids)
        regrets = logits.max(-1).values - logits.gather(-1, chosen[:, None])[:, 0]
        best = logits.argmax(-1)
        return [
            Place(i, output_ids[i], int(best[i]), float(regrets[i]))
            for i in (best != chosen).nonzero()[:, 0].tolist()
        ]
