"""How often the MTP layer's one draft token is the token the trunk then chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tools.glm_tiny.model import GlmTiny, checkpoint_tensors


def load_model(path: Path, device: str = "cpu") -> GlmTiny:
    """The checkpoint as the training model, float32.

    `checkpoint_tensors` gives views into the model's own storage, so filling them fills the model.
    """
    model = GlmTiny()
    stored = load_file(path / "model.safetensors")
    with torch.no_grad():
        for name, tensor in checkpoint_tensors(model).items():
            tensor.copy_(stored.pop(name).float())
    if stored:
        raise ValueError(f"tensors the model has no place for: {sorted(stored)}")
    return model.to(device).eval()


@torch.no_grad()
def mean_accepted_length(path: Path, answers: list[Any], device: str) -> tuple[float, int]:
    """1 + the share of draft tokens accepted under greedy decoding, and how many were drafted.

    `answers` have `prompt_ids` and the greedily generated `ids`. With the trunk at position t (its choice is
    token t + 1), the draft is token t + 2; every position of an answer is drafted for once.
    """
    model = load_model(path, device)
    accepted = drafted = 0
    for a in answers:
        ids = torch.tensor([a.prompt_ids + a.ids], device=device)
        _, hidden = model(ids, None)
        guess = model.lm_head(hidden).argmax(-1)[0]
        first = len(a.prompt_ids) - 1
        goal = ids[0, first + 2 :]
        accepted += int((guess[first : first + len(goal)] == goal).sum())
        drafted += len(goal)
    return 1 + accepted / max(1, drafted), drafted
