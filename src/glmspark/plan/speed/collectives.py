"""The collectives of a decoding step: which, how many, of how many bytes, and what one of them takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from glmspark.plan.speed.constants import Constants
from glmspark.plan.speed.links import Link, all_gather, all_reduce
from glmspark.plan.speed.run import Run

__all__ = ["Collective", "of_context", "of_drafter", "of_stages", "of_tensors"]

Cost = Callable[[Link, int, float, Constants], float]


@dataclass(frozen=True)
class Collective:
    """count: in a step. size: bytes that each rank gives. seconds: of one, latency: its share that a message
    of no bytes would take."""

    what: str
    count: int
    size: float
    seconds: float
    latency: float

    @property
    def total(self) -> float:
        """Seconds of all of them."""
        return self.count * self.seconds


def _one(what: str, count: int, cost: Cost, run: Run, ranks: int, size: float, c: Constants) -> Collective:
    return Collective(what, count, size, cost(run.link, ranks, size, c), cost(run.link, ranks, 0.0, c))


def of_tensors(run: Run, verified: float, constants: Constants) -> tuple[Collective, ...]:
    """Of tensor parallelism: two a layer, and embedding and logits. verified: tokens of the step."""
    if run.tp == 1:
        return ()
    size = verified * run.outline.architecture.hidden_size * run.element
    return (_one("all-reduce", 2 * run.work.layers + 2, all_reduce, run, run.tp, size, constants),)


def of_stages(run: Run, verified: float, constants: Constants) -> tuple[Collective, ...]:
    """From each stage of a pipeline to the next."""
    if run.pp == 1:
        return ()
    size = verified * run.outline.architecture.hidden_size * run.element
    seconds = constants.stage + size / run.link.bandwidth
    return (Collective("stage to stage", run.pp - 1, size, seconds, constants.stage),)


def of_context(run: Run, verified: float, constants: Constants) -> tuple[Collective, ...]:
    """Of context parallelism: queries gathered, partial results merged, the indexer's choices gathered."""
    if run.dcp == 1:
        return ()
    work, model = run.work, run.outline.architecture
    heads = model.heads / run.tp
    sizes = [
        ("gather of queries", work.attending, verified * heads * model.kv_latent * run.element),
        ("gather of partial results", work.attending, verified * heads * model.kv_lora_rank * run.element),
        ("gather of their sums", 0 if run.a2a else work.attending, verified * heads * 4),
        ("gather of the indexer's choices", work.indexers, verified * (model.index_topk or 0) * 8),
    ]
    return tuple(
        _one(what, count, all_gather, run, run.dcp, size, constants) for what, count, size in sizes if count
    )


def of_drafter(run: Run, batch: float, constants: Constants) -> tuple[Collective, ...]:
    """Of drafting: three a token by MTP, two a layer of a drafter of a block. batch: requests at once."""
    if run.tp == 1 or run.method not in ("mtp", "block") or not run.drafts:
        return ()
    by_mtp = run.method == "mtp"
    tokens = batch if by_mtp else batch * (1 + run.drafts)
    count = 3 * run.drafts if by_mtp else 2 * run.drafter_layers
    if not count:
        return ()
    size = tokens * run.outline.architecture.hidden_size * run.element
    return (_one("drafter's all-reduce", count, all_reduce, run, run.tp, size, constants),)
