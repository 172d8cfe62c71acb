"""Seconds of one decoding step, part by part."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

from glmspark.plan.speed.collectives import Collective, of_context, of_drafter, of_stages, of_tensors
from glmspark.plan.speed.constants import BANDWIDTH, Constants
from glmspark.plan.speed.run import Run

__all__ = ["PARTS", "decode_limit", "step_collectives", "step_parts", "touched"]

PARTS = ("weights", "experts", "attention", "collectives", "context", "launches", "drafter", "engine")
"""weights: all but routed experts. context: context parallelism's collectives and merging. engine: scheduler
and sampling."""

_FLOPS = 25e12
"""Operations a second of the experts' kernels on many tokens, as in prefill."""


def touched(experts: int, chosen: int, tokens: float, overlap: float) -> float:
    """Experts of a layer that `tokens` tokens choose, `chosen` each.

    Each further token chooses alike by a share `overlap` beyond chance; what is left is as by lot.
    """
    if experts == 0:
        return 0.0
    effective = 1 + (max(tokens, 1.0) - 1) * (1 - overlap)
    return float(experts * (1 - (1 - chosen / experts) ** effective))


def seconds_of(size: Mapping[str, float], constants: Constants) -> float:
    """Seconds to read bytes by kernel class."""
    return sum(one / (BANDWIDTH * float(getattr(constants, kind))) for kind, one in size.items())


def step_parts(run: Run, *, streams: float, depth: float, constants: Constants) -> dict[str, float]:
    """Seconds of a step by part. streams: requests at once. depth: tokens before the new ones."""
    work = run.work
    batch, verified = _batch(run, streams)
    parts = dict.fromkeys(PARTS, 0.0)
    parts["weights"] = seconds_of(work.dense, constants)
    parts["experts"] = work.moe_layers * _experts(run, work.expert, verified, constants)
    parts["attention"] = _attention(run, batch, verified, depth, constants)
    parts["collectives"] = _sum(of_tensors(run, verified, constants), of_stages(run, verified, constants))
    if run.dcp > 1:
        parts["context"] = (
            _sum(of_context(run, verified, constants)) + work.attending * constants.context_layer
        )
    parts["launches"] = work.layers * (constants.layer + (0.0 if run.graphs else constants.eager))
    parts["engine"] = constants.step
    if run.drafts:
        parts["drafter"] = _drafter(run, batch, constants)
    return parts


def _batch(run: Run, streams: float) -> tuple[float, float]:
    """Requests that are worked on at a time, and the tokens that are verified for them."""
    # Stages work on different requests at a time where there are enough of them.
    batch = max(streams / run.pp, 1.0)
    return batch, batch * (1 + run.drafts)


def step_collectives(run: Run, *, streams: float, constants: Constants) -> tuple[Collective, ...]:
    """The collectives of a step, which `step_parts` counts under collectives, context and drafter."""
    batch, verified = _batch(run, streams)
    return (
        *of_tensors(run, verified, constants),
        *of_stages(run, verified, constants),
        *of_context(run, verified, constants),
        *of_drafter(run, batch, constants),
    )


def _sum(*groups: tuple[Collective, ...]) -> float:
    return sum(one.total for group in groups for one in group)


def _experts(run: Run, expert: Mapping[str, float], tokens: float, constants: Constants) -> float:
    model = run.outline.architecture
    count = touched(model.experts, model.experts_per_token, tokens, constants.overlap)
    if run.expert_parallel and run.tp > 1:
        # Experts lie on ranks by lot; the fullest rank is waited for.
        count = count / run.tp * (1 + 0.85 * sqrt((run.tp - 1) / max(count, 1.0)))
    read = count * seconds_of(expert, constants)
    operations = tokens * model.experts_per_token * 6 * model.hidden_size * model.moe_intermediate_size
    return max(read, operations / run.tp / _FLOPS)


def _attention(run: Run, batch: float, verified: float, depth: float, constants: Constants) -> float:
    work, model = run.work, run.outline.architecture
    read = depth if not run.sparse or model.index_topk is None else min(depth, model.index_topk)
    latent = verified * work.attending * read * run.cache.latent
    keys = batch * work.indexers * depth * run.cache.indexer / model.index_pool
    return ((latent + keys) / run.dcp + batch * work.state) / (BANDWIDTH * constants.floats)


def _drafter(run: Run, batch: float, constants: Constants) -> float:
    """Seconds of drafting: a pass of the MTP layer for each token, or one of a drafter that drafts a
    block."""
    work = run.work
    network = _sum(of_drafter(run, batch, constants))
    if run.method == "lookup":
        return constants.step / 3
    if run.method == "mtp":
        one = seconds_of(work.mtp, constants) + work.head / (BANDWIDTH * constants.floats)
        one += _experts(run, work.mtp_expert, batch, constants)
        one += 0.0 if run.graphs else constants.eager
        return run.drafts * (one + constants.draft) + network
    read = run.drafter / run.tp / (BANDWIDTH * constants.floats)
    launches = run.drafter_layers * (constants.layer + (0.0 if run.graphs else constants.eager))
    return read + network + launches + 2 * constants.draft


def _drafter_bytes(run: Run, batch: float, overlap: float) -> float:
    """Bytes that drafting a step's tokens reads."""
    work, model = run.work, run.outline.architecture
    if run.method == "mtp":
        count = touched(model.experts, model.experts_per_token, batch, overlap)
        if run.expert_parallel:
            count /= run.tp
        return run.drafts * (sum(work.mtp.values()) + work.head + count * sum(work.mtp_expert.values()))
    return run.drafter / run.tp if run.method == "block" else 0.0


def decode_limit(run: Run, *, streams: float, depth: float, tokens: float, overlap: float) -> float:
    """Tokens a second if memory did nothing but stream what a step reads (weights, cache, states, drafter) at
    its full rate, on all ranks at once, with nothing else taking time. tokens: made in a step by every
    stream. overlap: see `touched`."""
    work, model = run.work, run.outline.architecture
    batch, verified = _batch(run, streams)
    count = touched(model.experts, model.experts_per_token, verified, overlap)
    if run.expert_parallel:
        count /= run.tp
    size = sum(work.dense.values()) + work.moe_layers * count * sum(work.expert.values())
    read = depth if not run.sparse or model.index_topk is None else min(depth, model.index_topk)
    size += verified * work.attending * read * run.cache.latent / run.dcp
    size += batch * work.indexers * depth * run.cache.indexer / model.index_pool / run.dcp
    size += batch * work.state + _drafter_bytes(run, batch, overlap)
    return streams * tokens / (size / BANDWIDTH)
