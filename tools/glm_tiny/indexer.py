"""Distil the indexers: each learns to rank tokens as the attention it serves weighs them.

The goal is the attention of all heads, summed and normalised, averaged over the layers that share the
indexer's choice; the loss is the Kullback-Leibler divergence from it to the softmax of the indexer's scores
(DeepSeek-V3.2, arXiv 2512.02556, section 2.1.1, extended to shared indexers).
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tools.glm_tiny.data import loader
from tools.glm_tiny.model import Attention, GlmTiny

LENGTHS = (4096, 8192)
ROWS = 192


def attention_rows(attention: Attention, x: Tensor, cos: Tensor, sin: Tensor, rows: Tensor) -> Tensor:
    """Attention of the query positions `rows` [R], averaged over heads: [B, R, T], float32."""
    _, q, k, _ = attention.qkv(x, cos, sin)
    scores = (q[:, :, rows] @ k.transpose(2, 3)).float() * attention.qk**-0.5
    hidden = torch.arange(k.shape[2], device=x.device)[None, :] > rows[:, None]
    return scores.masked_fill(hidden, float("-inf")).softmax(-1).mean(1)


def divergence(
    attention: Attention, x: Tensor, cos: Tensor, sin: Tensor, rows: Tensor, goal: Tensor
) -> Tensor:
    """KL(goal || softmax of the indexer's scores), averaged over rows; the trunk is not changed."""
    assert attention.indexer is not None
    with torch.no_grad():
        latent = attention.q_a_layernorm(attention.q_a_proj(x))
    scores = attention.indexer(x, latent, cos, sin, rows).float()
    hidden = torch.arange(x.shape[1], device=x.device)[None, :] > rows[:, None]
    guess = scores.masked_fill(hidden, float("-inf")).log_softmax(-1).masked_fill(hidden, 0.0)
    return F.kl_div(guess, goal, reduction="sum") / (goal.shape[0] * goal.shape[1])


def losses(model: GlmTiny, ids: Tensor, rows: Tensor) -> list[Tensor]:
    """One divergence per indexer: the trunk's full layers in order, then the MTP layer's."""
    cos, sin = model.rope(ids.shape[1], ids.device)
    goals: list[list[Tensor]] = []
    inputs: list[tuple[Attention, Tensor]] = []
    with torch.no_grad():
        embedded = model.embed_tokens(ids)
        x = embedded
        for layer in model.layers:
            normed = layer.input_layernorm(x)
            if layer.self_attn.indexer is not None:
                goals.append([])
                inputs.append((layer.self_attn, normed))
            goals[-1].append(attention_rows(layer.self_attn, normed, cos, sin, rows))
            x = layer(x, cos, sin, None)
        block = model.mtp.block
        normed = block.input_layernorm(model.mtp.join(model.norm(x), torch.roll(embedded, -1, 1)))
        inputs.append((block.self_attn, normed))
        goals.append([attention_rows(block.self_attn, normed, cos, sin, rows)])
    return [
        divergence(attention, normed, cos, sin, rows, torch.stack(goal).mean(0))
        for (attention, normed), goal in zip(inputs, goals, strict=True)
    ]


class Plan:
    """Long texts only: it is beyond 2,048 tokens that a choice is made at all."""

    def __call__(self, n: int) -> tuple[int, int, bool]:
        length = LENGTHS[n % 2]
        return 16384 // length, length, False


def query_rows(learn: Tensor, generator: torch.Generator) -> Tensor:
    """ROWS query positions: half of them where an answer is written, the rest anywhere."""
    answers = learn.any(0).nonzero()[:, 0].cpu()
    picked = answers[torch.randperm(len(answers), generator=generator)[: ROWS // 2]]
    others = torch.randint(0, learn.shape[1], (ROWS - len(picked),), generator=generator)
    return torch.cat((picked, others)).to(learn.device)


def distill(
    model: GlmTiny, tokenizer_json: str, steps: int, seed: int, device: str, workers: int
) -> list[dict[str, Any]]:
    """Train the indexers for `steps` steps; returns the log."""
    parameters = [p for n, p in model.named_parameters() if ".indexer." in n]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    batches = loader(tokenizer_json, seed + 1, Plan(), workers)
    model.eval()
    log, start = [], time.time()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 50) * (1 - step / steps)
        batch = {k: v.to(device) for k, v in next(batches).items()}
        rows = query_rows(batch["learn"], generator)
        with torch.autocast(device, torch.bfloat16):
            each = losses(model, batch["ids"], rows)
        sum(each[1:], each[0]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 or step == steps - 1:
            entry = {
                "step": step,
                "kl": [round(e.item(), 4) for e in each],
                "seconds": round(time.time() - start, 1),
            }
            log.append(entry)
            print(json.dumps(entry), file=sys.stderr, flush=True)
    return log
