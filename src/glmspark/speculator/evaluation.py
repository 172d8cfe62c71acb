"""How many of a drafter's tokens a target would accept: from captured states, as a greedy deployment steps.

For a sequence that the target wrote greedily, its own tokens are what verification says. A step starts at the
last known token, takes drafts as long as they are right, and the next step starts behind the token that the
target gives of its own. So the counts are those of vLLM's metrics, but for what a last step drafts beyond the
sequence's end: that is not counted here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from glmspark.speculator.dataset import Sequence
from glmspark.speculator.drafter import Drafter, Shared

__all__ = ["Acceptance", "evaluate"]


@dataclass
class Acceptance:
    """Counts of one kind of text. drafted and accepted [block]: by place in the draft; a place counts as
    drafted where the sequence reaches that far, whether those before it were accepted or not. brier: sum of
    squared differences between confidence and what happened."""

    block: int
    sequences: int = 0
    steps: int = 0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    brier: float = 0.0

    def __post_init__(self) -> None:
        self.drafted = self.drafted or [0] * self.block
        self.accepted = self.accepted or [0] * self.block

    @property
    def per_step(self) -> float:
        """Mean number of drafted tokens accepted a step; the target's own token comes on top."""
        return sum(self.accepted) / max(1, self.steps)

    @property
    def by_place(self) -> list[float]:
        """Share accepted of what was drafted at each place."""
        return [a / max(1, d) for a, d in zip(self.accepted, self.drafted, strict=True)]

    def add(self, other: Acceptance) -> None:
        """Count another's as well."""
        self.sequences += other.sequences
        self.steps += other.steps
        self.drafted = [a + b for a, b in zip(self.drafted, other.drafted, strict=True)]
        self.accepted = [a + b for a, b in zip(self.accepted, other.accepted, strict=True)]
        self.brier += other.brier

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "sequences": self.sequences,
            "steps": self.steps,
            "accepted_per_step": round(self.per_step, 4),
            "by_place": [round(share, 4) for share in self.by_place],
            "confidence_brier": round(self.brier / max(1, sum(self.drafted)), 4),
        }


def evaluate(
    drafter: Drafter,
    shared: Shared,
    sequences: Iterable[Sequence],
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Acceptance]:
    """Acceptance by kind of text, and of all together under "all". Sequences without an answer of two tokens
    are left out. dtype: what the drafter computes in; a deployment's is bfloat16."""
    drafter = drafter.to(device=device, dtype=dtype).eval()
    drafter.confidence_head.float()
    here = Shared(shared.embedding.to(device, dtype), shared.head.to(device, dtype))
    found: dict[str, Acceptance] = defaultdict(lambda: Acceptance(drafter.shape.block_size))
    for number, sequence in enumerate(sequences):
        if sequence.answer < 2:
            continue
        found[sequence.kind].add(_walk(drafter, here, sequence, device, dtype))
        progress(number)
    everything = Acceptance(drafter.shape.block_size)
    for one in found.values():
        everything.add(one)
    return {"all": everything, **dict(sorted(found.items()))}


@torch.no_grad()
def _walk(
    drafter: Drafter, shared: Shared, sequence: Sequence, device: str, dtype: torch.dtype
) -> Acceptance:
    size = drafter.shape.block_size
    tokens = sequence.tokens.to(device)
    # Every place a step may start at: from the first token of the answer to the last but one.
    anchors = torch.arange(sequence.prompt, len(tokens) - 1, device=device)
    block = drafter.blocks(
        shared,
        sequence.states.to(device, dtype)[None],
        tokens[None],
        anchors[None],
        torch.tensor([len(tokens)], device=device),
        torch.tensor([0], device=device),
    )
    drafts, confidence = drafter.draft(block, tokens[anchors][None])
    said, drafts_, sure = tokens.tolist(), drafts[0].tolist(), confidence[0].float().tolist()
    counts = Acceptance(size, sequences=1)
    at = 0
    while at < len(anchors):
        counts.steps += 1
        anchor = sequence.prompt + at
        reach = min(size, len(said) - 1 - anchor)
        right = 0
        for place in range(reach):
            counts.drafted[place] += 1
            hit = right == place and drafts_[at][place] == said[anchor + 1 + place]
            counts.brier += (sure[at][place] - float(drafts_[at][place] == said[anchor + 1 + place])) ** 2
            right += hit
            counts.accepted[place] += hit
        at += right + 1
    return counts
