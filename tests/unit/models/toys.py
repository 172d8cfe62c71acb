"""Checkpoints written for tests: real headers, holes instead of weights."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from glmspark.models import Architecture, read_architecture

SIZES = {"BF16": 2, "F32": 4, "U8": 1}

TOY: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 64,
    "v_head_dim": 8,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "index_topk": 2048,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk_pattern": "FSFS",
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}

# What GLM-5.2's config.json says of its shape.
GLM_5_2: dict[str, Any] = {
    **TOY,
    "vocab_size": 154880,
    "hidden_size": 6144,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk_pattern": None,
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
    "max_position_embeddings": 202752,
}


def toy(**changes: Any) -> dict[str, Any]:
    return {**TOY, **changes}


def architecture(config: Mapping[str, Any] = TOY) -> Architecture:
    return read_architecture(config, "config.json")


def tensors(config: Mapping[str, Any] = TOY) -> dict[str, tuple[str, list[int]]]:
    """Name -> (type, shape) of every tensor of an unquantized checkpoint."""
    found: dict[str, tuple[str, list[int]]] = {}
    for spec in architecture(config).specs:
        for expert in range(spec.experts):
            dtype = "F32" if spec.name.endswith("bias") and spec.kind == "router" else "BF16"
            found[spec.name.replace("{expert}", str(expert))] = (dtype, list(spec.shape))
    return found


def write_shard(path: Path, contents: Mapping[str, tuple[str, list[int]]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape) in contents.items():
        size = SIZES[dtype]
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    raw = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + position)


def write_checkpoint(
    directory: Path,
    config: Mapping[str, Any] = TOY,
    contents: Mapping[str, tuple[str, list[int]]] | None = None,
    shards: int = 1,
) -> Path:
    """A whole checkpoint directory; with several shards it has an index."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text('{"added_tokens": [], "model": {"type": "BPE"}}')
    contents = tensors(config) if contents is None else contents
    if shards == 1:
        write_shard(directory / "model.safetensors", contents)
        return directory
    weight_map: dict[str, str] = {}
    for i in range(shards):
        shard = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(contents.items())[i::shards])
        write_shard(directory / shard, part)
        weight_map |= dict.fromkeys(part, shard)
    write_index(directory, weight_map)
    return directory


def write_index(directory: Path, weight_map: Mapping[str, str]) -> None:
    path = directory / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def read_index(directory: Path) -> dict[str, str]:
    found = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    assert isinstance(found, dict)
    return found


def without(contents: Mapping[str, tuple[str, list[int]]], words: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in contents.items() if not any(word in name for word in words)}
