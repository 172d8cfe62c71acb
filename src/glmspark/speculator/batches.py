"""Batches of sequences with anchors: where in an answer a draft begins."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from glmspark.speculator.dataset import Sequence
from glmspark.speculator.drafter import Shared
from glmspark.speculator.shape import DrafterError

__all__ = ["Batch", "Corpus"]


@dataclass(frozen=True)
class Batch:
    """Sequences, padded: tokens [rows, n], states [rows, n, layers * hidden], last [rows, n, hidden],
    lengths and start [rows] (start: the position of column 0); anchors [rows, anchors] are columns, and where
    `real` [rows, anchors] is false they stand for nothing."""

    tokens: Tensor
    states: Tensor
    last: Tensor
    lengths: Tensor
    start: Tensor
    anchors: Tensor
    real: Tensor

    def targets(self, shared: Shared, block: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What the drafts at the anchors should have been, each [rows, anchors, block, ...]: the tokens
        before each, the tokens themselves, the target's logits, and whether the sequence reaches that far."""
        steps = torch.arange(block, device=self.anchors.device)
        places = self.anchors[..., None] + steps
        there = self.real[..., None] & (places + 1 < self.lengths[:, None, None])
        places = places.clamp(max=self.tokens.shape[1] - 1)
        rows = torch.arange(len(self.tokens), device=places.device)[:, None, None]
        before = self.tokens[rows, places]
        after = self.tokens[rows, (places + 1).clamp(max=self.tokens.shape[1] - 1)]
        logits = torch.nn.functional.linear(self.last[rows, places], shared.head.to(self.last.dtype))
        return before, after, logits, there


class Corpus:
    """Sequences held in memory, on the device that trains, and batches of them.

    length: longer sequences are cut, at random places, to so many tokens; a drafter without a window then
    sees less context than when serving. Sequences without an answer of two tokens are left out.
    """

    def __init__(self, sequences: Iterator[Sequence], *, device: str, length: int = 2048) -> None:
        self.device, self.length = device, length
        self.sequences = [
            Sequence(s.tokens.to(device), s.states.to(device), s.last.to(device), s.prompt, s.kind)
            for s in sequences
            if s.answer >= 2
        ]
        if not self.sequences:
            raise DrafterError("no sequence of the data set has an answer to draft")
        self._by_length = sorted(range(len(self.sequences)), key=lambda n: len(self.sequences[n].tokens))

    def batch(self, rng: random.Random, tokens: int, anchors: int) -> Batch:
        """Sequences of about one length, at most `tokens` with padding, and that many anchors in each."""
        at = rng.randrange(len(self._by_length))
        longest = min(len(self.sequences[self._by_length[at]].tokens), self.length)
        count = max(1, tokens // longest)
        chosen = self._by_length[max(0, at - count + 1) : at + 1]
        return self.collect([self._cut(self.sequences[n], rng) for n in chosen], rng, anchors)

    def _cut(self, sequence: Sequence, rng: random.Random) -> tuple[Sequence, int]:
        """A piece of at most `length` tokens that ends in the answer, and the position of its first token."""
        if len(sequence.tokens) <= self.length:
            return sequence, 0
        end = rng.randint(max(sequence.prompt + 2, self.length), len(sequence.tokens))
        span = slice(end - self.length, end)
        piece = Sequence(
            sequence.tokens[span],
            sequence.states[span],
            sequence.last[span],
            max(1, sequence.prompt - span.start),
            sequence.kind,
        )
        return piece, span.start

    def collect(self, pieces: list[tuple[Sequence, int]], rng: random.Random, anchors: int) -> Batch:
        """A batch of these; anchors are drawn from the answers, all of them where there are not more."""
        most = max(len(piece.tokens) for piece, _ in pieces)

        places, real = [], []
        for piece, _ in pieces:
            # An anchor is a token of the answer that another follows: the first was sampled from the prompt.
            all_places = range(piece.prompt, len(piece.tokens) - 1)
            drawn = rng.sample(all_places, anchors) if len(all_places) > anchors else list(all_places)
            places.append(drawn + [min(piece.prompt, most - 1)] * (anchors - len(drawn)))
            real.append([True] * len(drawn) + [False] * (anchors - len(drawn)))
        return Batch(
            pad_sequence([piece.tokens for piece, _ in pieces], batch_first=True),
            pad_sequence([piece.states for piece, _ in pieces], batch_first=True),
            pad_sequence([piece.last for piece, _ in pieces], batch_first=True),
            torch.tensor([len(piece.tokens) for piece, _ in pieces], device=self.device),
            torch.tensor([start for _, start in pieces], device=self.device),
            torch.tensor(places, device=self.device),
            torch.tensor(real, device=self.device),
        )
