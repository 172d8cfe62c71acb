"""What is to be predicted: a model in a layout on links, and what a step then has to move."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from glmspark.models.outline import Outline, Weights
from glmspark.plan.cache import CacheFormat
from glmspark.plan.speed.links import Link

__all__ = ["Run", "Work", "kernel_class"]


PACKED_FP8 = CacheFormat("fp8_ds_mla", 656, 132)
"""Of GLM-5.2 on a GB10."""


def kernel_class(form: str) -> str:
    """Which kernels read a format: packed (4 and 8 bits), floats, exl3 or exl3_tuned."""
    if form.startswith("exl3"):
        return "exl3_tuned" if form.startswith("exl3-tuned") else "exl3"
    return "floats" if form in ("bf16", "f16", "f32", "f64") else "packed"


@dataclass(frozen=True)
class Run:
    """A layout. drafter: bytes of the drafter's own checkpoint, drafter_layers: of it; both 0 with MTP.

    drafts: tokens drafted a step. method: mtp, block (DFlash, DSpark: all tokens in one pass), lookup
    (n-gram, suffix: no model), or empty. a2a: context parallelism exchanges partial results in one
    collective.
    """

    outline: Outline
    link: Link
    tp: int = 1
    pp: int = 1
    dcp: int = 1
    expert_parallel: bool = False
    graphs: bool = True
    sparse: bool = True
    cache: CacheFormat = PACKED_FP8
    element: int = 2
    method: str = ""
    drafts: int = 0
    drafter: int = 0
    drafter_layers: int = 0
    a2a: bool = False
    chunk: int = 2048

    @cached_property
    def work(self) -> Work:
        """What a step moves, for prediction after prediction."""
        return Work.of(self)


@dataclass(frozen=True)
class Work:
    """Bytes that one rank reads, over all stages of the pipeline, since a token passes them one by one.

    dense: of every step, by kernel class. expert: of one routed expert on a rank, by kernel class. head: the
    output matrix. mtp: the drafting layer's dense part, mtp_expert: of one of its experts. state: of linear
    attention for a sequence.
    """

    dense: Mapping[str, float]
    expert: Mapping[str, float]
    moe_layers: int
    head: float
    mtp: Mapping[str, float]
    mtp_expert: Mapping[str, float]
    attending: int
    indexers: int
    layers: int
    state: float

    @classmethod
    def of(cls, run: Run) -> Work:
        """Add up the outline's weights for a run."""
        model = run.outline.architecture
        dense: dict[str, float] = defaultdict(float)
        mtp: dict[str, float] = defaultdict(float)
        expert: dict[str, float] = defaultdict(float)
        mtp_expert: dict[str, float] = defaultdict(float)
        head = 0.0
        for one in run.outline.weights:
            if one.kind in ("embedding", "vision") or (one.kind == "indexer" and not run.sparse):
                continue
            size = _share(one, run)
            kernels = kernel_class(one.format)
            if one.kind == "routed_experts":
                (mtp_expert if one.mtp else expert)[kernels] += size / one.experts
            else:
                (mtp if one.mtp else dense)[kernels] += size
                head += size if one.kind == "lm_head" else 0.0
        moe = sum(layer.moe for layer in model.layers)
        linear = model.linear
        state = 0.0
        if linear is not None:
            heads = linear.heads / run.tp
            state = heads * linear.width**2 * 4 * 2 * sum(layer.linear for layer in model.layers)
        return cls(
            dense=dense,
            expert={kind: size / max(moe, 1) for kind, size in expert.items()},
            moe_layers=moe,
            head=head,
            mtp=mtp,
            mtp_expert=mtp_expert,
            attending=sum(not layer.linear for layer in model.layers),
            indexers=sum(layer.indexer == "full" for layer in model.layers) if run.sparse else 0,
            layers=len(model.layers),
            state=state,
        )


def _share(one: Weights, run: Run) -> float:
    size = float(one.read(run.element))
    if one.experts > 1 and run.expert_parallel:
        return size  # an expert lies whole on its rank
    return size / run.tp if one.tp else size
