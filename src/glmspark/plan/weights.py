"""Weights of one rank after loading, in bytes, by class."""

from __future__ import annotations

from collections import Counter

from glmspark.models.outline import Outline, Weights
from glmspark.plan.split import Place, padded_vocab

__all__ = ["largest_layer", "on_stage", "rank_weights"]


def rank_weights(
    outline: Outline,
    place: Place,
    *,
    tp: int,
    element: int,
    indexer: bool,
    mtp: bool,
    ep: bool = False,
    twice: bool = False,
) -> dict[str, int]:
    """Bytes of each class of weights on a rank; "mtp" is all of the MTP layers.

    element: bytes of one element in the engine's dtype, to which unquantized weights are converted; quantized
    ones stay as stored. indexer, mtp: whether those are loaded. Split weights count 1/tp, the others (norms,
    router, MLA down-projections, indexer) whole. ep: experts lie whole on the ranks, shared out by number.
    twice: see `Weights.loaded`.
    """
    found: Counter[str] = Counter()
    for one in outline.weights:
        if one.kind == "indexer" and not indexer:
            continue
        if on_stage(one, place, mtp=mtp, tied=outline.architecture.tied_embeddings):
            found["mtp" if one.mtp else one.kind] += _share(one, outline, tp, element, ep, twice=twice)
    return dict(found)


def on_stage(one: Weights, place: Place, *, mtp: bool, tied: bool) -> bool:
    """Whether a pipeline stage holds a class of weights. The drafter needs the embedding, too."""
    if one.layer is None:
        if one.kind == "vision":
            return place.first_stage
        if one.kind == "embedding":
            return place.first_stage or (place.last_stage and (tied or mtp))
        return place.last_stage
    if one.layer.mtp:
        return mtp and place.last_stage
    start, end = place.layers
    return start <= one.layer.index < end


def _share(one: Weights, outline: Outline, tp: int, element: int, ep: bool, *, twice: bool) -> int:
    size = one.loaded(element, twice=twice)
    if one.kind in ("embedding", "lm_head"):
        vocab = outline.architecture.vocab_size
        size = size * padded_vocab(vocab) // vocab
    if ep and one.experts > 1:
        return size * -(-one.experts // tp) // one.experts
    return size // tp if one.tp else size


def largest_layer(outline: Outline, *, tp: int, element: int) -> int:
    """Bytes of the quantized weights of the largest layer on a rank: so much is held twice for a moment when
    a layer is brought into the order of its kernel after loading."""
    return max(
        (
            sum(_share(one, outline, tp, element, False, twice=False) for one in group if not one.elements)
            for layer, group in outline.by_layer.items()
            if layer is not None
        ),
        default=0,
    )
