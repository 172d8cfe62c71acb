"""Where in a batch's tokens a sequence lies, found by its tokens and positions."""

from __future__ import annotations

import itertools
from collections import defaultdict

import torch

__all__ = ["pieces", "rows_of"]


def pieces(positions: torch.Tensor) -> list[tuple[int, int]]:
    """Where the pieces of a row of positions [n] lie: (begin, end) of each run that rises by one."""
    if not len(positions):
        return []
    breaks = (positions[1:] != positions[:-1] + 1).nonzero().flatten() + 1
    edges = [0, *breaks.tolist(), len(positions)]
    return list(itertools.pairwise(edges))


def rows_of(tokens: torch.Tensor, positions: torch.Tensor, wanted: list[list[int]]) -> list[slice | None]:
    """For each wanted sequence the rows of the batch [n] that hold it from its first token on, None where
    none do. Equal sequences have equal states and share rows; padding and other sequences may lie between.
    """
    starting: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for begin, end in pieces(positions):
        if positions[begin] == 0:
            starting[int(tokens[begin])].append((begin, end))
    return [_rows(tokens, sequence, starting) for sequence in wanted]


def _rows(
    tokens: torch.Tensor, sequence: list[int], starting: dict[int, list[tuple[int, int]]]
) -> slice | None:
    whole = torch.tensor(sequence, dtype=tokens.dtype)
    for begin, end in starting.get(sequence[0], ()):
        if end - begin >= len(whole) and torch.equal(tokens[begin : begin + len(whole)], whole):
            return slice(begin, begin + len(whole))
    return None
