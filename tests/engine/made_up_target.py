"""A made-up target that counts, a data set of its states, and the settings of a small drafter for it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from safetensors.torch import save_file

from glmspark.speculator import store, training
from glmspark.speculator.dataset import Dataset, Sequence, Writer
from glmspark.speculator.shape import Shape

VOCAB, HIDDEN = 48, 32
SHAPE = Shape(
    HIDDEN, VOCAB, (1, 2), VOCAB - 1, heads=4, kv_heads=2, head_dim=8, intermediate_size=48, window=16,
    markov_rank=8, block_size=4, max_positions=256,
)  # fmt: skip
SETTINGS = training.Settings(steps=60, tokens=400, anchors=6, warm_up=5, rate=5e-3)


def write_target(folder: Path) -> Path:
    """A target that is its two matrices: it counts, and is sure of it."""
    torch.manual_seed(0)
    save_file(
        {
            "model.embed_tokens.weight": torch.randn(VOCAB, HIDDEN),
            "lm_head.weight": torch.randn(VOCAB, HIDDEN),
        },
        folder / "model.safetensors",
    )
    config = {"num_hidden_layers": 3, "hidden_size": HIDDEN, "vocab_size": VOCAB}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def counting(target: Path, count: int) -> list[Sequence]:
    shared, rng = store.read_shared(target), random.Random(1)
    torch.manual_seed(1)
    found = []
    for _ in range(count):
        start, length = rng.randrange(VOCAB), rng.randint(12, 30)
        tokens = torch.tensor([(start + k) % (VOCAB - 1) for k in range(length)])
        states = torch.cat((shared.embedding[tokens], torch.randn(length, HIDDEN)), dim=-1)
        last = shared.head[(tokens + 1) % (VOCAB - 1)]
        found.append(Sequence(tokens, states.bfloat16(), last.bfloat16(), 4, rng.choice(("odd", "even"))))
    return found


def write_data(folder: Path, target: Path) -> Dataset:
    """80 sequences in two shards."""
    writer = Writer(folder, [1, 2], {"target": str(target), "target_sha256": store.digest(target)})
    sequences = counting(target, 80)
    writer.add(sequences[:50])
    writer.add(sequences[50:])
    return Dataset.open(folder)
