"""Train glm-tiny from nothing: trunk and MTP layer first, then the indexers.

    python -m tools.glm_tiny.train --out DIR [--steps N] [--device cuda]

Seeds, steps, times and losses go to DIR/training.json. On one H200 the released run took minutes; a CPU
works too, slowly.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tools.glm_tiny.corpus import sample_texts
from tools.glm_tiny.data import PACKED_LENGTH, loader
from tools.glm_tiny.export import save_checkpoint
from tools.glm_tiny.indexer import distill
from tools.glm_tiny.model import GlmTiny
from tools.glm_tiny.tokenizer import train_tokenizer

MTP_WEIGHT = 0.3
LONG = (4096, 8192)


class Plan:
    """Which kind of batch step n takes: packed short ones first, later one long one in three."""

    def __init__(self, tokens: int, long_from: int):
        self.tokens, self.long_from = tokens, long_from

    def __call__(self, n: int) -> tuple[int, int, bool]:
        if n < self.long_from or n % 3:
            return self.tokens // PACKED_LENGTH, PACKED_LENGTH, True
        length = LONG[(n // 3) % 2]
        return max(1, self.tokens // length), length, False


def document_mask(doc: Tensor) -> Tensor:
    """[B, T] document numbers to [B, 1, T, T], true where a token may look."""
    length = doc.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=doc.device).tril()
    return ((doc[:, :, None] == doc[:, None, :]) & causal)[:, None]


def targets(batch: dict[str, Tensor], ahead: int) -> Tensor:
    """Token `ahead` positions on where the model is to produce it, else -100; [B, T]."""
    out = torch.where(batch["learn"], batch["ids"], -100)
    if "doc" in batch:  # do not predict into the next conversation
        same = torch.roll(batch["doc"], ahead, 1) == batch["doc"]
        out = torch.where(same, out, -100)
    out = torch.roll(out, -ahead, 1)
    out[:, -ahead:] = -100
    return out


def losses(
    model: GlmTiny, hidden: tuple[Tensor, Tensor], batch: dict[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Cross entropy of the trunk and of the MTP layer, and the share of tokens the trunk gets right."""
    out = []
    for ahead, h in enumerate(hidden, 1):
        weight = model.lm_head.weight if ahead == 1 else model.lm_head.weight.detach()
        goal = targets(batch, ahead).flatten()
        known = goal >= 0
        logits = F.linear(h.flatten(0, 1)[known], weight)
        out.append(F.cross_entropy(logits.float(), goal[known]))
        if ahead == 1:
            right = (logits.detach().argmax(-1) == goal[known]).float().mean()
    return out[0], out[1], right


def rate(step: int, steps: int, peak: float) -> float:
    """Warm-up, then cosine to nothing."""
    warm = max(10, steps // 40)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def train_trunk(
    model: GlmTiny, tokenizer_json: str, a: argparse.Namespace, log: list[dict[str, Any]]
) -> None:
    decay = [p for n, p in model.named_parameters() if ".indexer." not in n and p.dim() > 1]
    plain = [p for n, p in model.named_parameters() if ".indexer." not in n and p.dim() <= 1]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
    fused = a.device != "cpu"
    optimizer = torch.optim.AdamW(groups, lr=a.rate, betas=(0.9, 0.95), fused=fused)
    batches = loader(tokenizer_json, a.seed, Plan(a.tokens, int(a.steps * a.long_from)), a.workers)
    forward = torch.compile(model, dynamic=False) if a.compile else model
    model.train()
    start, seen = time.time(), 0
    for step in range(a.steps):
        batch = {k: v.to(a.device, non_blocking=True) for k, v in next(batches).items()}
        for group in optimizer.param_groups:
            group["lr"] = rate(step, a.steps, a.rate)
        mask = document_mask(batch["doc"]) if "doc" in batch else None
        with torch.autocast(a.device, torch.bfloat16):
            hidden = forward(batch["ids"], mask)
            trunk, mtp, right = losses(model, hidden, batch)
            loss = trunk + MTP_WEIGHT * mtp
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for moe in model.moes():
            moe.balance(0.001 if step < a.steps * 0.8 else 0.0)
        seen += batch["ids"].numel()
        if step % a.log_every == 0 or step == a.steps - 1:
            elapsed = time.time() - start
            entry = {"step": step, "loss": trunk.item(), "mtp_loss": mtp.item(), "right": right.item()}
            entry |= {"length": batch["ids"].shape[1], "seconds": round(elapsed, 1)}
            log.append(entry)
            print(json.dumps(entry | {"tokens_per_s": round(seen / elapsed)}), file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--index-steps", type=int, default=600, help="steps of the indexers' distillation")
    parser.add_argument("--tokens", type=int, default=65536, help="tokens a step")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--long-from", type=float, default=0.3, help="share of the steps before long texts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 2))
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available())
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--resume", type=Path, help="state.pt of an earlier run to start from")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    start = time.time()
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    tokenizer = train_tokenizer(sample_texts(1, 20_000))
    model = GlmTiny().to(a.device)
    if a.resume:
        model.load_state_dict(torch.load(a.resume, map_location=a.device))
    log: list[dict[str, Any]] = []
    if a.steps:
        train_trunk(model, tokenizer.to_str(), a, log)
    torch.save(model.state_dict(), a.out / "state.pt")
    index_log = distill(model, tokenizer.to_str(), a.index_steps, a.seed, a.device, a.workers)
    torch.save(model.state_dict(), a.out / "state.pt")
    save_checkpoint(model, tokenizer, a.out)
    record = {
        "command": "python -m tools.glm_tiny." + " ".join(["train", *sys.argv[1:]]),
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": round(time.time() - start, 1),
        "device": torch.cuda.get_device_name() if a.device == "cuda" else platform.processor(),
        "torch": torch.__version__,
        "trunk": log,
        "indexers": index_log,
    }
    (a.out / "training.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
