"""Training of a drafter: steps, loss, a state to go on from, and what it was trained with."""

from __future__ import annotations

import io
import json
import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from glmspark.config.files import make_dir, write_atomic, write_json
from glmspark.speculator.batches import Batch, Corpus
from glmspark.speculator.dataset import Dataset
from glmspark.speculator.drafter import Drafter, Shared
from glmspark.speculator.ranks import Ranks
from glmspark.speculator.shape import DrafterError, Shape
from glmspark.speculator.store import digest, read_drafter, read_shared

__all__ = ["LOSSES", "STATE", "Settings", "losses", "resume", "train"]

STATE = "state.pt"
LOSSES = "training.jsonl"


@dataclass(frozen=True)
class Settings:
    """How to train. tokens: of a batch, with padding. anchors: drafts a sequence and batch. ce, tv and
    confidence: weights of cross entropy with the true token, of the total variation distance to the target's
    distribution and of the confidence head's own loss; the first two as published for GLM-5.2's drafter are
    0.1 and 0.9, and more cross entropy gets a small drafter going. decay: drafts further on count less, by
    exp(-place / decay), as `speculators` does it. every: seconds between two states to go on from."""

    steps: int = 4000
    tokens: int = 16_384
    anchors: int = 32
    rate: float = 2e-3
    warm_up: int = 100
    ce: float = 0.5
    tv: float = 0.5
    confidence: float = 0.2
    decay: float = 4.0
    length: int = 2048
    seed: int = 0
    every: float = 60.0

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("tokens", 16), ("anchors", 1), ("length", 16), ("warm_up", 0)):
            if getattr(self, name) < least:
                raise DrafterError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not (self.rate > 0 and math.isfinite(self.rate)):
            raise DrafterError(f"rate must be above 0, not {self.rate}")


def losses(
    drafter: Drafter, shared: Shared, batch: Batch, settings: Settings
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch, and its parts: ce, tv, confidence, and accepted, the mean number of tokens that
    would be accepted behind an anchor if each draft were judged with the true tokens before it."""
    block = drafter.shape.block_size
    made = drafter.blocks(shared, batch.states, batch.tokens, batch.anchors, batch.lengths, batch.start)
    before, after, wanted, there = batch.targets(shared, block)
    embedded, bias = drafter.bias(before)
    logits = (made.logits + bias).float()
    weight = torch.exp(-torch.arange(block, device=logits.device) / settings.decay) * there
    total = weight.sum().clamp(min=1e-6)
    ce = functional.cross_entropy(logits.flatten(0, 2), after.flatten(), reduction="none").view(after.shape)
    overlap = torch.minimum(logits.softmax(-1), wanted.float().softmax(-1)).sum(-1)
    trusted = drafter.confidence(made.hidden.detach(), embedded.detach())
    sure = functional.binary_cross_entropy_with_logits(
        trusted, overlap.detach().clamp(0, 1), reduction="none"
    )
    parts = {
        "ce": (ce * weight).sum() / total,
        "tv": ((1 - overlap) * weight).sum() / total,
        "confidence": (sure * weight).sum() / total,
    }
    loss = settings.ce * parts["ce"] + settings.tv * parts["tv"] + settings.confidence * parts["confidence"]
    with torch.no_grad():
        right = ((logits.argmax(-1) == after) & there).long().cumprod(-1).sum(-1)
        accepted = right.sum() / batch.real.sum().clamp(min=1)
    return loss, {name: value.detach() for name, value in parts.items()} | {"accepted": accepted}


def resume(directory: Path) -> dict[str, Any] | None:
    """The state of a training that was begun in a directory, None where none was.

    Raises DrafterError where it cannot be read.
    """
    path = directory / STATE
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise DrafterError(
            f"{path} is not the state of a training",
            step="go on with the training",
            seen=f"{type(error).__name__}: {str(error)[:200]}",
            next="name another directory, or remove it",
        ) from error
    return state


def train(
    dataset: Dataset,
    target: Path,
    out: Path,
    shape: Shape,
    settings: Settings,
    *,
    start: Path | None = None,
    device: str | None = None,
    progress: Callable[[int, dict[str, float]], None] = lambda *_: None,
) -> dict[str, Any]:
    """Train a drafter for `target` in the directory `out`, or go on with what was begun there.

    start: a drafter to begin with, whose shape must be this one (its window may be another). Below torchrun
    each rank takes batches of its own and all take one step together; rank 0 writes. Returns {steps, seconds,
    tokens (that were read), loss, accepted}. Raises DrafterError where data, target, shape and an earlier
    state do not belong together.
    """
    ranks = Ranks.at_hand(device)
    shared = _shared(target, dataset, shape, ranks.device)
    drafter, begun = _drafter(shape, start, settings.seed), resume(out)
    identity = {
        "shape": shape.to_json(),
        "dataset": dataset.digest,
        "settings": {k: v for k, v in asdict(settings).items() if k not in ("steps", "every")},
        "start": digest(start) if start else None,
    }
    optimizer_state, done = None, 0
    if begun is not None:
        if (seen := json.loads(begun["identity"])) != identity:
            differ = sorted(key for key in identity if seen.get(key) != identity[key])
            raise DrafterError(
                f"{out} holds a training with another {' and another '.join(differ)}",
                step="go on with the training",
                next="use the same data and settings (--steps may be another), or name another directory",
            )
        drafter.load_state_dict(begun["drafter"])
        optimizer_state, done = begun["optimizer"], int(begun["step"])
    drafter.to(ranks.device)
    optimizer = torch.optim.AdamW(
        drafter.parameters(), lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.01
    )
    if optimizer_state is not None:
        optimizer.load_state_dict(optimizer_state)
    if ranks.first:
        make_dir(out, mode=0o755)
        _cut_losses(out / LOSSES, done)
        write_json(out / "provenance.json", identity | _provenance(dataset, target, ranks), mode=0o644)
    corpus = Corpus(dataset.sequences(held_out=False), device=ranks.device, length=settings.length)
    run = _Run(drafter, optimizer, corpus, shared, settings, ranks, out, json.dumps(identity))
    return run.steps(done, progress)


@dataclass(frozen=True)
class _Run:
    drafter: Drafter
    optimizer: torch.optim.Optimizer
    corpus: Corpus
    shared: Shared
    settings: Settings
    ranks: Ranks
    out: Path
    identity: str

    def steps(self, done: int, progress: Callable[[int, dict[str, float]], None]) -> dict[str, Any]:
        """From step `done` to the last."""
        begin = saved = time.monotonic()
        read, last, most = 0, dict[str, float](), self.settings.steps
        self.drafter.train()
        for step in range(done, most):
            tokens, parts = self._step(step)
            read += tokens
            if step % 20 == 19 or step + 1 == most:
                last = {name: round(float(value), 5) for name, value in parts.items()}
                if not math.isfinite(last["loss"]):
                    raise DrafterError(
                        f"the loss is {last['loss']} at step {step + 1}", next="a lower --rate"
                    )
                if self.ranks.first:
                    with (self.out / LOSSES).open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"step": step + 1, **last}) + "\n")
                    progress(step + 1, last)
            now = time.monotonic()
            if self.ranks.first and (now - saved > self.settings.every or step + 1 == most):
                self._save(step + 1)
                saved = now
        self.ranks.end()
        return {"steps": most, "seconds": round(time.monotonic() - begin, 1), "tokens": read, **last}

    def _step(self, step: int) -> tuple[int, dict[str, Tensor]]:
        # A step's batch comes from its number alone: a training that was broken off goes on the same.
        rng = random.Random(f"{self.settings.seed} {step} {self.ranks.rank}")  # noqa: S311 - no secret
        batch = self.corpus.batch(rng, self.settings.tokens, self.settings.anchors)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.rate * _schedule(step, self.settings)
        with torch.autocast(self.ranks.kind, torch.bfloat16, enabled=self.ranks.kind == "cuda"):
            loss, parts = losses(self.drafter, self.shared, batch, self.settings)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.ranks.average(self.drafter)
        torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), 1.0)
        self.optimizer.step()
        return int(batch.tokens.numel()), {"loss": loss.detach(), **parts}

    def _save(self, step: int) -> None:
        buffer = io.BytesIO()
        state = {"drafter": self.drafter.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state | {"step": step, "identity": self.identity}, buffer)
        write_atomic(self.out / STATE, buffer.getvalue())


def _schedule(step: int, settings: Settings) -> float:
    """Share of the rate: a linear warm-up, then a half cosine to a hundredth."""
    if step < settings.warm_up:
        return (step + 1) / settings.warm_up
    rest = (step - settings.warm_up) / max(1, settings.steps - settings.warm_up)
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, rest)))


def _shared(target: Path, dataset: Dataset, shape: Shape, device: str) -> Shared:
    shared = read_shared(target)
    if shared.head.shape != (shape.vocab_size, shape.hidden_size):
        raise DrafterError(
            f"the target has {' x '.join(map(str, shared.head.shape))} (tokens x hidden size), the drafter "
            f"{shape.vocab_size} x {shape.hidden_size}"
        )
    if dataset.aux_layers != shape.aux_layers:
        raise DrafterError(
            f"the data set has the states of layers {list(dataset.aux_layers)}, the drafter reads "
            f"{list(shape.aux_layers)}"
        )
    if dataset.provenance.get("target_sha256") != digest(target):
        raise DrafterError(
            f"the data set was captured from another checkpoint than {target}",
            seen=f"{dataset.provenance.get('target')}, by SHA-256",
            next="name the one it was captured from: its drafter reads that one's states",
        )
    return Shared(shared.embedding.to(device), shared.head.to(device))


def _drafter(shape: Shape, start: Path | None, seed: int) -> Drafter:
    if start is None:
        return Drafter(shape, seed)
    found = read_drafter(start)
    if replace(found.shape, window=None, max_positions=1) != replace(shape, window=None, max_positions=1):
        raise DrafterError(
            f"the drafter in {start} is of another shape",
            seen=json.dumps(found.shape.to_json()),
            next="leave the settings of the shape out: they are then the drafter's",
        )
    found.shape = shape
    for layer in found.layers:
        layer.self_attn.shape = shape
    return found


def _cut_losses(path: Path, step: int) -> None:
    """Drop what was noted after the state that is gone on from."""
    if not path.exists():
        return
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    kept = "".join(json.dumps(line) + "\n" for line in lines if line["step"] <= step)
    write_atomic(path, kept.encode())


def _provenance(dataset: Dataset, target: Path, ranks: Ranks) -> dict[str, Any]:
    from glmspark import __version__

    return {
        "target": str(target),
        "data": dataset.provenance | {"tokens": dataset.tokens},
        "trained_with": {
            "glmspark": __version__,
            "torch": str(torch.__version__),
            "device": torch.cuda.get_device_name() if ranks.kind == "cuda" else "CPU",
            "ranks": ranks.count,
            "host_threads": os.cpu_count(),
        },
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
