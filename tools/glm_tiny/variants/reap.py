"""glm-tiny-reap: experts pruned by REAP, laid out as in the 469B GLM-5.2 checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from tools.glm_tiny.variants import VariantError
from tools.glm_tiny.variants.calibrate import observe
from tools.glm_tiny.variants.checkpoint import Checkpoint, read
from tools.glm_tiny.variants.layouts import keep_best
from tools.glm_tiny.variants.names import Role, module_of, moe_layers, mtp_layers

PLAN = "reap-prune-plan-full.json"
KEEP = 5

Numbering = Literal["original", "renumbered"]
RouterRows = Literal["pruned", "original"]


def prune(
    source: Checkpoint,
    kept: Mapping[int, Sequence[int]],
    *,
    numbering: Numbering = "original",
    router: RouterRows = "pruned",
    plan: bool = True,
) -> Checkpoint:
    """The checkpoint with only the `kept` experts of each layer, and without the MTP layer's weights.

    As in the 469B checkpoint the config still declares the MTP layer, and `n_routed_experts` is the pruned
    number. `numbering` is what the tensor names say: "original" numbers with holes, or 0 to n-1. `router` is
    how many rows the router and its correction bias have: "pruned" ones, or all of the "original" ones.
    Raises VariantError for numbers that do not fit, and for renumbered experts under a whole router.
    """
    counts = {len(set(experts)) for experts in kept.values()}
    if set(kept) != set(moe_layers(source.config)) or len(counts) != 1:
        raise VariantError(
            f"the kept experts name layers {sorted(kept)} with {sorted(counts)} experts; every MoE layer, "
            f"{list(moe_layers(source.config))}, needs the same number of them"
        )
    total, count = source.config["n_routed_experts"], counts.pop()
    if any(not 0 <= expert < total for experts in kept.values() for expert in experts):
        raise VariantError(f"the kept experts name one outside 0 to {total - 1}")
    if not source.config["num_experts_per_tok"] <= count <= total:
        raise VariantError(
            f"{count} kept experts: the router needs {source.config['num_experts_per_tok']} to {total}"
        )
    if numbering == "renumbered" and router == "original":
        raise VariantError("renumbered experts under a router with all its rows contradict each other")
    place = {layer: {old: new for new, old in enumerate(sorted(experts))} for layer, experts in kept.items()}
    tensors = {}
    for name, tensor in source.tensors.items():
        module = module_of(name)
        if module.layer in mtp_layers(source.config):
            continue
        renamed = name
        if module.role is Role.EXPERT:
            if module.expert not in place[module.layer]:
                continue
            if numbering == "renumbered":
                old, new = f".experts.{module.expert}.", f".experts.{place[module.layer][module.expert]}."
                renamed = name.replace(old, new)
        rows = tensor
        if module.role is Role.ROUTER and router == "pruned":
            rows = tensor[sorted(kept[module.layer])]
        tensors[renamed] = rows
    files = dict(source.files)
    if plan:
        listed = {str(layer): {"kept": sorted(experts)} for layer, experts in sorted(kept.items())}
        files[PLAN] = json.dumps(listed, indent=1) + "\n"
    return Checkpoint({**source.config, "n_routed_experts": count}, dict(sorted(tensors.items())), files)


def derive(
    source: Path,
    *,
    keep: int = KEEP,
    numbering: Numbering = "original",
    router: RouterRows = "pruned",
    plan: bool = True,
) -> Checkpoint:
    """Prune the checkpoint in `source` to the `keep` experts a layer that calibration answers need most."""
    checkpoint = read(source)
    seen = observe(source)
    kept = keep_best({layer: seen.saliency(layer) for layer in moe_layers(checkpoint.config)}, keep)
    return prune(checkpoint, kept, numbering=numbering, router=router, plan=plan)
