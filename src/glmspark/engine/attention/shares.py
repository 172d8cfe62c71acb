"""Which of a request's tokens lie on which rank in decode context parallelism, and the top-k of all ranks.

Token p of a request lies on rank `p // interleave % world`; a rank keeps its tokens in order, without gaps
(vLLM's v1/attention/backends/utils.py: get_dcp_local_seq_lens).
"""

from __future__ import annotations

import torch


def local_lengths(lengths: torch.Tensor, world: int, rank: int, interleave: int = 1) -> torch.Tensor:
    """How many of the first `lengths` tokens lie on `rank`, int32, elementwise. No host sync."""
    whole = lengths // (interleave * world) * interleave
    rest = (lengths - whole * world - rank * interleave).clamp(0, interleave)
    return (whole + rest).to(torch.int32)


def row_lengths(
    starts: torch.Tensor, lengths: torch.Tensor, rows: int, world: int = 1, rank: int = 0, interleave: int = 1
) -> torch.Tensor:
    """The local length of every query row, int32 [rows]: the last row of a request sees all of its tokens,
    the one before it one fewer, and so on.

    starts: [requests + 1], where a request's rows begin. lengths: [requests], over all ranks. The bound is
    taken in the whole sequence and then shared out: taking rows off a local length is wrong wherever the
    tokens left out lie on another rank. Rows of no request have length 0.
    """
    place = torch.arange(rows, device=lengths.device, dtype=starts.dtype)
    request = torch.searchsorted(starts[1:].contiguous(), place, right=True)
    known = request.clamp_max(lengths.shape[0] - 1)
    bound = (lengths[known] - (starts[known + 1] - 1 - place)).clamp_min(0)
    bound = torch.where(request < lengths.shape[0], bound, torch.zeros_like(bound))
    return local_lengths(bound, world, rank, interleave)


def global_places(local: torch.Tensor, world: int, rank: int, interleave: int = 1) -> torch.Tensor:
    """Places in the whole sequence of a rank's own places; -1 stays -1."""
    places = (local // interleave * world + rank) * interleave + local % interleave
    return torch.where(local < 0, local, places)


def merge_top_k(scores: torch.Tensor, places: torch.Tensor, k: int) -> torch.Tensor:
    """The k best of all ranks' candidates: int32 places [rows, k], -1 where there are fewer.

    scores: float32 [rows, candidates], places: [rows, candidates], -1 for unused. A token among the k best of
    all is among the k best of its rank, so that the ranks' own k are all it takes. Equal scores: the earlier
    place is taken, so that all ranks choose alike whatever order the candidates come in.
    """
    scores = torch.where(places < 0, torch.full_like(scores, float("-inf")), scores)
    order = torch.argsort(places, dim=1, stable=True)
    scores, places = scores.gather(1, order), places.gather(1, order)
    best = torch.argsort(scores, dim=1, descending=True, stable=True)[:, :k]
    chosen = places.gather(1, best).to(torch.int32)
    if chosen.shape[1] < k:
        chosen = torch.nn.functional.pad(chosen, (0, k - chosen.shape[1]), value=-1)
    return chosen
