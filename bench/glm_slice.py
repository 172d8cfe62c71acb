"""A checkpoint of a few layers with GLM-5.2's dimensions and made-up numbers, in NVFP4 as published ones are.

One dense layer, the rest MoE; experts and MLPs in compressed-tensors' NVFP4, everything else in bf16. It
loads and runs like the real thing, and answers nothing. 192 experts in one MoE layer make 5.3 GB.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

CONFIG: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "dtype": "bfloat16",
    "hidden_size": 6144, "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 2048,
    "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "head_dim": 64,
    "intermediate_size": 12288, "moe_intermediate_size": 2048, "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "rope_interleave": True, "max_position_embeddings": 202752, "attention_bias": False,
    "index_topk": 2048, "index_n_heads": 32, "index_head_dim": 128, "indexer_rope_interleave": True,
    "num_nextn_predict_layers": 0, "tie_word_embeddings": False, "eos_token_id": [1], "pad_token_id": 1,
}  # fmt: skip
"""GLM-5.2's config.json, but for the numbers of layers, experts and tokens."""

SHARD = 2**30
"""Bytes a file, about."""

Spec = tuple[str, str, tuple[int, ...]]


def tensors(config: dict[str, Any]) -> Iterator[Spec]:
    """(name, type, shape) of every tensor."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    quantized = "quantization_config" in config
    yield "model.embed_tokens.weight", "BF16", (vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        stem = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{stem}{norm}.weight", "BF16", (hidden,)
        yield from _attention(f"{stem}self_attn.", config)
        if layer < config["first_k_dense_replace"]:
            yield from _mlp(f"{stem}mlp.", hidden, config["intermediate_size"], quantized)
            continue
        experts, width = config["n_routed_experts"], config["moe_intermediate_size"]
        yield f"{stem}mlp.gate.weight", "BF16", (experts, hidden)
        yield f"{stem}mlp.gate.e_score_correction_bias", "F32", (experts,)
        yield from _mlp(f"{stem}mlp.shared_experts.", hidden, width, quantized)
        for expert in range(experts):
            yield from _mlp(f"{stem}mlp.experts.{expert}.", hidden, width, quantized)
    yield "model.norm.weight", "BF16", (hidden,)
    yield "lm_head.weight", "BF16", (vocab, hidden)


def _attention(stem: str, config: dict[str, Any]) -> Iterator[Spec]:
    hidden, heads, q_rank = config["hidden_size"], config["num_attention_heads"], config["q_lora_rank"]
    nope, rope, value = (config[f"{name}_head_dim"] for name in ("qk_nope", "qk_rope", "v"))
    index_heads, index_dim = config["index_n_heads"], config["index_head_dim"]
    for name, shape in {
        "q_a_proj.weight": (q_rank, hidden),
        "q_a_layernorm.weight": (q_rank,),
        "q_b_proj.weight": (heads * (nope + rope), q_rank),
        "kv_a_proj_with_mqa.weight": (config["kv_lora_rank"] + rope, hidden),
        "kv_a_layernorm.weight": (config["kv_lora_rank"],),
        "kv_b_proj.weight": (heads * (nope + value), config["kv_lora_rank"]),
        "o_proj.weight": (hidden, heads * value),
        "indexer.wq_b.weight": (index_heads * index_dim, q_rank),
        "indexer.wk.weight": (index_dim, hidden),
        "indexer.k_norm.weight": (index_dim,),
        "indexer.k_norm.bias": (index_dim,),
        "indexer.weights_proj.weight": (index_heads, hidden),
    }.items():
        yield stem + name, "BF16", shape


def _mlp(stem: str, hidden: int, width: int, quantized: bool) -> Iterator[Spec]:
    for name, outputs, inputs in (
        ("gate_proj", width, hidden),
        ("up_proj", width, hidden),
        ("down_proj", hidden, width),
    ):
        if quantized:
            yield f"{stem}{name}.weight_packed", "U8", (outputs, inputs // 2)
            yield f"{stem}{name}.weight_scale", "F8_E4M3", (outputs, inputs // 16)
            yield f"{stem}{name}.weight_global_scale", "F32", (1,)
        else:
            yield f"{stem}{name}.weight", "BF16", (outputs, inputs)


class Numbers:
    """Made-up contents, cut from one block of random numbers: fast to make, and no two tensors alike."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        values = rng.standard_normal(2**22, dtype=np.float32) * 0.02
        self._bf16 = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        self._bytes = rng.bytes(2**24)
        # e4m3 from 0.5 to 1.9: no infinities, and no NaN.
        self._scales = rng.integers(0x30, 0x40, 2**22, dtype=np.uint8).tobytes()
        self._at = 0

    def write(self, file: Any, spec: Spec) -> None:
        """One tensor's bytes."""
        name, dtype, shape = spec
        count = int(np.prod(shape))
        if name.endswith("norm.weight"):
            file.write(np.full(count, 0x3F80, np.uint16).tobytes())  # 1.0 in bf16
        elif dtype == "F32":
            # Values of up to 6 times scales of about 1, divided by this: weights of about 0.02.
            file.write(np.full(count, 150.0 if "global_scale" in name else 0.0, np.float32).tobytes())
        else:
            block = {"BF16": self._bf16, "U8": self._bytes, "F8_E4M3": self._scales}[dtype]
            left = count * (2 if dtype == "BF16" else 1)
            while left:
                self._at = (self._at + 4099 * 2) % (len(block) // 2)
                part = memoryview(block)[self._at : self._at + left]
                file.write(part)
                left -= len(part)


def write(
    target: Path,
    *,
    layers: int = 2,
    experts: int = 192,
    vocab: int = 16384,
    bf16: bool = False,
    weights: bool = True,
) -> int:
    """Write the checkpoint to the new folder `target`; returns its bytes. Leaves nothing on failure.

    bf16: nothing is quantized. weights: False leaves it at config.json, for a load format that makes them up.
    """
    config = {**CONFIG, "num_hidden_layers": layers, "n_routed_experts": experts, "vocab_size": vocab}
    config["indexer_types"] = ["full"] * layers
    if not bf16:
        config["quantization_config"] = _quantization()
    target.mkdir(parents=True)
    try:
        (target / "config.json").write_text(json.dumps(config, indent=1))
        return _write(target, config) if weights else 0
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _quantization() -> dict[str, Any]:
    weights = {
        "num_bits": 4,
        "type": "float",
        "symmetric": True,
        "strategy": "tensor_group",
        "group_size": 16,
    }
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {**group, "format": "nvfp4-pack-quantized"}},
        "ignore": ["lm_head", "model.embed_tokens", r"re:.*\.mlp\.gate$", r"re:.*\.self_attn\..*"],
    }


def _write(target: Path, config: dict[str, Any]) -> int:
    numbers, total, index = Numbers(), 0, {}
    shards: list[list[Spec]] = [[]]
    size = 0
    for spec in tensors(config):
        if size > SHARD:
            shards.append([])
            size = 0
        shards[-1].append(spec)
        size += _nbytes(spec)
    for number, specs in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        header, position = {}, 0
        for spec in specs:
            end = position + _nbytes(spec)
            header[spec[0]] = {"dtype": spec[1], "shape": list(spec[2]), "data_offsets": [position, end]}
            index[spec[0]] = name
            position = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (target / name).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for spec in specs:
                numbers.write(file, spec)
        total += position
    weights = {"metadata": {"total_size": total}, "weight_map": index}
    (target / "model.safetensors.index.json").write_text(json.dumps(weights))
    return total


def _nbytes(spec: Spec) -> int:
    return int(np.prod(spec[2])) * {"BF16": 2, "F32": 4}.get(spec[1], 1)
