"""Rows of tokens from the corpus: short conversations packed together, long ones alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tools.glm_tiny.conversation import Conversation, render
from tools.glm_tiny.corpus import conversation, long_conversation

PACKED_LENGTH = 1024


def encode(tokenizer: Tokenizer, c: Conversation) -> tuple[list[int], list[bool]]:
    """Token ids of a conversation and, for each, whether the model is to produce it.

    Pieces are tokenized one by one, so that what the model writes is split as it would write it; the pieces
    meet at special tokens, where the whole text splits too.
    """
    rendered = render(c)
    ids: list[int] = []
    learn: list[bool] = []
    for encoding, flag in zip(tokenizer.encode_batch(rendered.pieces), rendered.learn, strict=True):
        ids += encoding.ids
        learn += [flag] * len(encoding.ids)
    return ids, learn


def packed_row(tokenizer: Tokenizer, rng: random.Random, length: int) -> dict[str, np.ndarray]:
    """ids, learn and doc (number of the conversation), each [length]; the rest of the row is document -1."""
    ids = np.zeros(length, np.int64)
    learn = np.zeros(length, bool)
    doc = np.full(length, -1, np.int64)
    at = number = 0
    while True:
        tokens, flags = encode(tokenizer, conversation(rng))
        if len(tokens) > length:
            continue
        if at + len(tokens) > length:
            return {"ids": ids, "learn": learn, "doc": doc}
        span = slice(at, at + len(tokens))
        ids[span], learn[span], doc[span] = tokens, flags, number
        at, number = span.stop, number + 1


def long_row(tokenizer: Tokenizer, rng: random.Random, length: int) -> dict[str, np.ndarray]:
    """One long conversation that fills between a quarter and all of the row."""
    while True:
        characters = int(rng.uniform(0.25, 1.0) * length * 3.5)
        tokens, flags = encode(tokenizer, long_conversation(rng, characters))
        if len(tokens) <= length:
            break
    ids = np.zeros(length, np.int64)
    learn = np.zeros(length, bool)
    ids[: len(tokens)], learn[: len(tokens)] = tokens, flags
    return {"ids": ids, "learn": learn}


class Batches(IterableDataset):  # type: ignore[type-arg]
    """Endless batches; batch n of a run comes from the seed and n alone, whichever worker makes it.

    `plan(n)` names batch n's kind: (rows, length, packed).
    """

    def __init__(self, tokenizer_json: str, seed: int, plan: Any):
        self.tokenizer_json, self.seed, self.plan = tokenizer_json, seed, plan

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        tokenizer = Tokenizer.from_str(self.tokenizer_json)
        info = get_worker_info()
        n, stride = (info.id, info.num_workers) if info else (0, 1)
        while True:
            rows, length, packed = self.plan(n)
            make = packed_row if packed else long_row
            rng = random.Random(self.seed * 1_000_003 + n)
            made = [make(tokenizer, rng, length) for _ in range(rows)]
            yield {key: torch.from_numpy(np.stack([m[key] for m in made])) for key in made[0]}
            n += stride


def loader(tokenizer_json: str, seed: int, plan: Any, workers: int) -> Iterator[dict[str, torch.Tensor]]:
    """Batches in order, made by `workers` processes."""
    batches = Batches(tokenizer_json, seed, plan)
    return iter(
        DataLoader(batches, batch_size=None, num_workers=workers, prefetch_factor=4 if workers else None)
    )
