"""Seconds of reading a prompt, chunk by chunk."""

from __future__ import annotations

from glmspark.plan.speed.constants import Constants
from glmspark.plan.speed.links import all_gather, all_reduce
from glmspark.plan.speed.run import Run
from glmspark.plan.speed.step import seconds_of, touched

__all__ = ["PREFILL_PARTS", "prefill_parts", "prefill_seconds"]

PREFILL_PARTS = ("arithmetic", "weights", "attention", "collectives", "context", "launches")
_MOST_CHUNKS = 64
"""Chunks looked at one by one; of longer prompts so many, evenly over their length."""


def prefill_parts(run: Run, *, tokens: float, depth: float, constants: Constants) -> dict[str, float]:
    """Seconds of one chunk of `tokens` after `depth` others, by part."""
    work, model = run.work, run.outline.architecture
    operations = 2.0 * model_active(run) * tokens / run.tp
    reach = depth + tokens / 2
    read = reach if not run.sparse or model.index_topk is None else min(reach, float(model.index_topk))
    width = model.kv_lora_rank * 2 + model.qk_rope_head_dim
    scores = 2.0 * tokens * read * model.heads / run.tp * width * work.attending
    # The indexer multiplies in fp8, at twice the rate.
    index = 1.0 * tokens * reach / model.index_pool * model.index_heads * model.index_head_dim * work.indexers
    count = touched(model.experts, model.experts_per_token, tokens, 0.0)
    if run.expert_parallel:
        count /= run.tp
    size = tokens * model.hidden_size * run.element
    reduce = (2 * work.layers + 1) * all_reduce(run.link, run.tp, size, constants)
    context = 0.0
    if run.dcp > 1:
        # Each layer gathers the keys that other ranks hold of what was read before, and merges by softmax.
        held = tokens * model.heads / run.tp * model.kv_latent * run.element
        gathered = 2 * all_gather(run.link, run.dcp, held, constants)
        context = constants.prefill_context * work.attending * gathered
    weights = seconds_of(work.dense, constants) + work.moe_layers * count * seconds_of(work.expert, constants)
    return {
        "arithmetic": operations / constants.compute,
        "weights": weights,
        "attention": (scores + index) / constants.compute,
        "collectives": reduce + (run.pp - 1) * (constants.stage + size / run.link.bandwidth),
        "context": context,
        "launches": work.layers * (constants.eager + constants.prefill_layer * tokens),
    }


def model_active(run: Run) -> float:
    """Parameters that a token passes through, with the stand-in architectures of calibration, too."""
    model = run.outline.architecture
    if model.specs:
        return float(model.active_parameters)
    work = run.work
    dense = sum(work.dense.values()) * run.tp
    expert = 3.0 * model.hidden_size * model.moe_intermediate_size
    return dense + expert * model.experts_per_token * work.moe_layers


def prefill_seconds(run: Run, prompt: float, constants: Constants, *, chunk: int | None = None) -> float:
    """Seconds until a prompt is read. chunk: tokens at a time, max_num_batched_tokens."""
    size = float(min(chunk or run.chunk, max(prompt, 1)))
    chunks = max(prompt / size, 1.0)
    samples = min(int(chunks + 0.999), _MOST_CHUNKS)
    step = prompt / samples
    total = 0.0
    for number in range(samples):
        middle = step * (number + 0.5) - size / 2
        total += sum(prefill_parts(run, tokens=size, depth=max(middle, 0.0), constants=constants).values())
    return total / samples * chunks
