"""Which matrices each published format quantizes, and how its config says so. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tools.glm_tiny.variants.names import MLA_PROJECTIONS, Module, Role, main_layers, mtp_layers

Attention = Literal["bf16", "nvfp4"]
Algorithm = Literal["NVFP4", "W4A16_NVFP4"]

_MLPS = frozenset({Role.DENSE, Role.SHARED})


def keep_best(saliency: Mapping[int, Sequence[float]], keep: int) -> dict[int, list[int]]:
    """The `keep` experts of highest saliency of each layer, in order of their numbers; ties: the lower."""
    kept = {}
    for layer, scores in sorted(saliency.items()):
        ranked = sorted(range(len(scores)), key=lambda expert: (-scores[expert], expert))
        kept[layer] = sorted(ranked[:keep])
    return kept


# --- NVFP4 ------------------------------------------------------------------------------------------------

#: Weights that share an fp8 scale.
NVFP4_GROUP = 16
#: The release of ModelOpt whose files ours are like, in the words it puts into them.
PRODUCER = {"name": "modelopt", "version": "0.47.0"}


def in_nvfp4(module: Module, config: Mapping[str, Any], attention: Attention) -> bool:
    """Whether NVFP4 takes a module: the MLPs of the model's own layers and, if asked for, their attention.

    What published checkpoints leave in bf16 stays so: router, indexer, norms, embeddings, lm_head, MTP.
    """
    roles = _MLPS | {Role.EXPERT} | ({Role.ATTENTION} if attention == "nvfp4" else frozenset())
    return module.role in roles and module.layer in main_layers(config)


def nvfp4_ignore(config: Mapping[str, Any], attention: Attention) -> list[str]:
    """What compressed-tensors' config leaves alone, as regular expressions on module names."""
    patterns = ["lm_head", "model.embed_tokens", r"re:.*\.mlp\.gate$", r"re:.*\.self_attn\.indexer\..*"]
    if attention == "bf16":
        patterns.append(r"re:.*\.self_attn\..*")
    return patterns + [rf"re:model\.layers\.{layer}\..*" for layer in mtp_layers(config)]


def modelopt_exclude(config: Mapping[str, Any], attention: Attention) -> list[str]:
    """What ModelOpt's config leaves alone: its wildcards on module names."""
    patterns = ["lm_head", "model.embed_tokens"]
    for layer in main_layers(config):
        whole = "self_attn*" if attention == "bf16" else "self_attn.indexer*"
        patterns.append(f"model.layers.{layer}.{whole}")
        if layer >= config["first_k_dense_replace"]:
            patterns.append(f"model.layers.{layer}.mlp.gate")
    return patterns + [f"model.layers.{layer}*" for layer in mtp_layers(config)]


def modelopt_config(
    config: Mapping[str, Any], attention: Attention, algorithm: Algorithm
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What ModelOpt writes into hf_quant_config.json, and into config.json as `quantization_config`."""
    excluded = modelopt_exclude(config, attention)
    four_bits = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": NVFP4_GROUP}
    group: dict[str, Any] = {"weights": four_bits, "targets": ["Linear"]}
    if algorithm == "NVFP4":
        group["input_activations"] = four_bits
    beside = {
        "quant_algo": algorithm,
        "kv_cache_quant_algo": None,
        "group_size": NVFP4_GROUP,
        "exclude_modules": excluded,
    }
    inside = {
        "config_groups": {"group_0": group},
        "ignore": excluded,
        "quant_algo": algorithm,
        "producer": PRODUCER,
        "quant_method": "modelopt",
    }
    return {"producer": PRODUCER, "quantization": beside}, inside


# --- Int4-Int8Mix -----------------------------------------------------------------------------------------

#: Group names of the published checkpoints.
EXPERTS, LINEARS, MTP = "w4a16_experts", "w8a16_linears", "w8a16_mtp_channel"

MIX_IGNORE = (
    "re:model[.]layers[.]0[.].*",
    "re:.*[.]mlp[.]gate$",
    "re:.*[.]self_attn[.]indexer[.].*",
    "re:.*[.](?:eh_proj|shared_head[.]head|embed_tokens)$",
    "lm_head",
)


def mix_group(module: Module, config: Mapping[str, Any]) -> str | None:
    """The group of Int4-Int8Mix that quantizes a module, or None if it stays as it is.

    With GLM-5.2's shapes this gives the published checkpoint's tensor count and size to the byte.
    """
    linear = module.role in _MLPS | {Role.ATTENTION}
    if module.layer in mtp_layers(config):
        return MTP if linear or module.role is Role.EXPERT else None
    if module.layer == 0 or module.layer not in main_layers(config):
        return None
    if module.role is Role.EXPERT:
        return EXPERTS
    return LINEARS if linear else None


def _one_of(numbers: Sequence[int]) -> str:
    return "(?:" + "|".join(str(n) for n in sorted(numbers, reverse=True)) + ")"


def mix_targets(config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Regular expressions on module names for each group: the checkpoint's names and vLLM's joined ones."""
    attention = "self_attn[.](?:" + "|".join(("fused_qkv_a_proj", *MLA_PROJECTIONS)) + ")"
    projection = "(?:gate_up_proj|gate_proj|up_proj|down_proj)"
    expert = f"mlp[.]experts[.][0-9]+[.]{projection}"
    mlp = f"mlp[.](?:shared_experts[.])?{projection}"
    quantized = _one_of([n for n in main_layers(config) if n > 0])
    targets = {
        EXPERTS: [f"re:model[.]layers[.]{quantized}[.]{expert}$"],
        LINEARS: [f"re:model[.]layers[.]{quantized}[.](?:{attention}|{mlp})$"],
    }
    if mtp := list(mtp_layers(config)):
        inner = f"(?:{attention}|{mlp}|{expert})"
        targets[MTP] = [f"re:model[.]layers[.]{_one_of(mtp)}[.](?:mtp_block[.])?{inner}$"]
    return targets
