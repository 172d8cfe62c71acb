"""Checkpoints whose experts were pruned: numbers and router rows as the model expects them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from glmspark.engine import code as look
from glmspark.engine.code import Code
from glmspark.engine.experts import ExpertsContradictError, Kept, kept_experts, read_plan
from glmspark.engine.model_config import ARCHITECTURE, missing_hook, on_glm_config
from glmspark.engine.model_weights import Weights, local_directory, on_weights
from glmspark.engine.patch import Finding, Patch, PatchRefusedError, Target
from glmspark.engine.shards import ShardError, part_of, read_shards

logger = logging.getLogger("vllm.glmspark.pruned_experts")

_GENERIC = "vllm.model_executor.models.deepseek_v2"
_FILTER = "vllm.model_executor.model_loader.ep_weight_filter"
_LOADER = "vllm.model_executor.model_loader.default_loader"


def needed(target: Target) -> str | None:
    """None where vLLM's GLM runs: what lies on disk decides, model by model."""
    if target.platform in {"cpu", "cuda"}:
        return None
    return f"glmspark serves GLM on CPU and CUDA, not on {target.platform}"


def precondition(code: Code) -> Finding:
    """Experts are still found by the number in their tensors' names, and so is what EP leaves unread."""
    load = code.find(_GENERIC, "DeepseekV2Model.load_weights")
    if look.parameters(load) != ["self", "weights"]:
        return Finding.no(
            f"{_GENERIC}.DeepseekV2Model.load_weights takes ({', '.join(look.parameters(load))})"
        )
    if not look.calls(load, "fused_moe_make_expert_params_mapping"):
        return Finding.no(
            f"{_GENERIC}: experts are not found by fused_moe_make_expert_params_mapping any more"
        )
    if look.parameters(code.find(_FILTER, "should_skip_weight")) != ["weight_name", "local_expert_ids"]:
        return Finding.no(f"{_FILTER}.should_skip_weight does not go by names any more")
    prepare = code.find(_LOADER, "DefaultModelLoader._init_ep_weight_filter")
    if not look.mentions(prepare, "enable_ep_weight_filter"):
        return Finding.no(f"{_LOADER} does not read enable_ep_weight_filter any more")
    if missing := missing_hook(code):
        return Finding.no(missing)
    return Finding.yes("experts are found by the number in their tensors' names")


@cache
def kept_on_disk(directory: str, experts: int) -> Kept | None:
    """What pruning left of the checkpoint in `directory`; None where experts have the model's own numbers.

    Raises PatchRefusedError with the contradiction where no reading of the checkpoint is right.
    """
    root = Path(directory)
    part = part_of(root)
    if part is not None and part.experts:
        return None  # a rank's own experts, cut out of a checkpoint that numbers them from 0
    try:
        shapes = {name: stored.shape for name, stored in read_shards(root).items()}
        return kept_experts(shapes, experts, read_plan(root))
    except (ExpertsContradictError, ShardError) as error:
        raise PatchRefusedError(
            f"{root}: {error}\n  next: fetch config.json, index, shards and pruning plan again, from one "
            f"revision; a checkpoint that is published so cannot be served"
        ) from None


def has_mtp(directory: str, layers: int) -> bool:
    """Whether the checkpoint has any weight of a layer after its first `layers`."""
    part = part_of(Path(directory))
    if part is not None:  # what the last stage has need not be here
        return part.mtp
    try:
        names = read_shards(Path(directory))
    except ShardError as error:
        raise PatchRefusedError(str(error)) from None
    found = {words[1] for name in names if len(words := name.removeprefix("model.").split(".")) > 2}
    return any(number.isdigit() and int(number) >= layers for number in found)


def check_checkpoint(vllm_config: Any) -> None:
    """Before any rank loads: refuse contradictions and an absent MTP layer, and keep EP's filter off."""
    config = vllm_config.model_config
    directory = local_directory(config.model, config.revision)
    if directory is None:
        return
    kept = kept_on_disk(str(directory), config.hf_config.n_routed_experts)
    parallel = vllm_config.parallel_config
    if kept is not None and parallel.enable_ep_weight_filter:
        # The filter takes numbers on disk for the model's own, and would leave the wrong experts unread.
        parallel.enable_ep_weight_filter = False
        logger.warning(
            "--enable-ep-weight-filter is off: this checkpoint numbers experts as before pruning; every rank "
            "reads all of them and keeps its own"
        )
    speculation = vllm_config.speculative_config
    drafter = getattr(speculation, "draft_model_config", None)
    if speculation is None or speculation.method != "mtp" or drafter is None:
        return
    drafts = local_directory(drafter.model, drafter.revision)
    if drafts is not None and not has_mtp(str(drafts), config.hf_config.num_hidden_layers):
        raise PatchRefusedError(
            f"{drafts}: config.json declares an MTP layer, of which the checkpoint has no weights\n"
            f"  next: remove --speculative-config, or use method ngram"
        )


def renumber(model: Any, weights: Weights) -> Iterator[tuple[str, Any]]:
    """The weights with experts numbered and routers cut to what the model has."""
    import torch

    directory = local_directory(model.weights_directory)
    kept = kept_on_disk(str(directory), model.config.n_routed_experts) if directory is not None else None
    if kept is None:
        yield from weights
        return
    count = 0
    for name, tensor in weights:
        renamed, rows = kept.rename(name), kept.rows(name)
        count += renamed != name
        yield renamed, tensor if rows is None else tensor[torch.tensor(rows, device=tensor.device)]
    logger.info("%d tensors of pruned experts renumbered to 0..%d", count, model.config.n_routed_experts - 1)


def apply() -> None:
    """Register the rule and the step."""
    on_glm_config(check_checkpoint)
    on_weights(renumber)


PATCH = Patch(
    name="pruned-experts",
    title="Pruned checkpoints with original expert numbers",
    upstream=(
        f"{ARCHITECTURE} takes the number in an expert's tensor name for its place in the layer: numbers as "
        "before pruning end in a KeyError, and router rows of pruned experts do not fit."
    ),
    reason="REAP checkpoints of GLM are published in both numberings, with whole and with cut routers",
    link="https://github.com/CerebrasResearch/reap",
    versions=">=0.32,<0.34",
    needed=needed,
    precondition=precondition,
    apply=apply,
)
