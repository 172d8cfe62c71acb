"""GLM-5, 5.2 and 5.3 (`glm_moe_dsa`): MLA attention with a DSA indexer, routed and shared experts, MTP.

Names and shapes follow the released checkpoints and transformers' `GlmMoeDsaForCausalLM`; the MTP layer,
which transformers leaves out, follows vLLM's `DeepSeekMTP`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

from glmspark.models.architecture import Architecture, Kind, Layer, TensorSpec
from glmspark.models.configvalues import ConfigValues

__all__ = ["MODEL_TYPE", "read", "tensors"]

MODEL_TYPE = "glm_moe_dsa"
_MAX_LAYERS = 4096

_Indexer = Literal["full", "shared"]
_INDEXERS = {"F": "full", "S": "shared", "full": "full", "shared": "shared"}


def read(config: Mapping[str, Any], where: str) -> Architecture:
    """The architecture of a glm_moe_dsa config.json. Raises CheckpointError naming the key at fault."""
    values = ConfigValues(config, where)
    count = values.integer("num_hidden_layers", most=_MAX_LAYERS)
    mtp_count = values.integer("num_nextn_predict_layers", least=0, most=16, default=0)
    index_topk = values.integer("index_topk") if values.has("index_topk") else None
    moe = _moe_layers(values, count)
    indexers: list[_Indexer | None] = list(_indexers(values, count)) if index_topk else [None] * count
    layers = tuple(Layer(i, moe[i], indexers[i]) for i in range(count))
    # vLLM builds an MTP layer with an indexer of its own, and as MoE like the last layers of the trunk.
    mtp = tuple(Layer(count + i, moe[-1], "full" if index_topk else None, mtp=True) for i in range(mtp_count))
    experts = values.integer("n_routed_experts", most=65536)
    quantization = config.get("quantization_config")
    dimensions: dict[str, Any] = {
        "vocab_size": values.integer("vocab_size"),
        "hidden_size": values.integer("hidden_size"),
        "layers": layers,
        "mtp_layers": mtp,
        "heads": values.integer("num_attention_heads"),
        "q_lora_rank": values.integer("q_lora_rank"),
        "kv_lora_rank": values.integer("kv_lora_rank"),
        "qk_nope_head_dim": values.integer("qk_nope_head_dim"),
        "qk_rope_head_dim": values.integer("qk_rope_head_dim"),
        "v_head_dim": values.integer("v_head_dim"),
        "intermediate_size": values.integer("intermediate_size"),
        "moe_intermediate_size": values.integer("moe_intermediate_size"),
        "experts": experts,
        "experts_per_token": values.integer("num_experts_per_tok", most=experts),
        "shared_experts": values.integer("n_shared_experts", least=0, most=1024, default=0),
        "index_topk": index_topk,
        "index_heads": values.integer("index_n_heads") if index_topk else 0,
        "index_head_dim": values.integer("index_head_dim") if index_topk else 0,
        "max_position": values.integer("max_position_embeddings"),
        "tied_embeddings": values.flag("tie_word_embeddings", default=False),
        "attention_bias": values.flag("attention_bias", default=False),
        "dtype": values.text("dtype") or values.text("torch_dtype"),
        "quantization": _quantization(values, quantization),
    }
    if config.get("model_type") == MODEL_TYPE:  # GLM-5.3-Flash's text part is read by these rules, too
        _check_others(values, dimensions)
    specs = tuple(tensors(dimensions))
    return Architecture(name="GlmMoeDsaForCausalLM", model_type=MODEL_TYPE, specs=specs, **dimensions)


def _check_others(values: ConfigValues, dimensions: Mapping[str, Any]) -> None:
    """What no plan computes with and the engine reads: a wrong one would end the ranks after minutes, or give
    another model. Absent ones have transformers' defaults."""
    names = values.config.get("architectures")
    if names is not None and (not isinstance(names, list) or "GlmMoeDsaForCausalLM" not in names):
        raise values.bad("architectures", "does not name GlmMoeDsaForCausalLM")
    if dimensions["qk_rope_head_dim"] % 2:
        raise values.bad("qk_rope_head_dim", "is odd; rotary keys come in pairs")
    for key in ("dtype", "torch_dtype"):
        values.one_of(key, ("bfloat16", "float16", "float32"))
    values.one_of("hidden_act", ("silu",))
    values.one_of("scoring_func", ("sigmoid", "softmax"))
    values.one_of("topk_method", ("noaux_tc",))
    values.flag("norm_topk_prob", default=True)
    values.number("rms_norm_eps", default=1e-5)
    values.number("routed_scaling_factor", default=1.0)
    groups = values.integer("n_group", most=dimensions["experts"], default=1)
    if dimensions["experts"] % groups:
        raise values.bad("n_group", f"is {groups}, which does not divide {dimensions['experts']} experts")
    values.integer("topk_group", most=groups, default=1)
    rope = values.config.get("rope_parameters") or values.config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise values.bad("rope_parameters", "is not a mapping")
    theta = ConfigValues(rope if "rope_theta" in rope else values.config, values.where)
    theta.number("rope_theta", default=10_000.0)
    for key in ("eos_token_id", "pad_token_id", "bos_token_id"):
        values.tokens(key, dimensions["vocab_size"])


def _quantization(values: ConfigValues, config: object) -> str | None:
    if config is None:
        return None
    if not isinstance(config, dict):
        raise values.bad("quantization_config", "is not a mapping")
    method = config.get("quant_method")
    if not isinstance(method, str) or not method:
        raise values.bad("quantization_config.quant_method", "is missing")
    return method


def _moe_layers(values: ConfigValues, count: int) -> list[bool]:
    types = values.choices("mlp_layer_types", {"dense": "dense", "sparse": "sparse"}, count)
    if types is not None:
        return [kind == "sparse" for kind in types]
    dense = values.integer("first_k_dense_replace", least=0)
    return [i >= dense for i in range(count)]


def _indexers(values: ConfigValues, count: int) -> tuple[_Indexer, ...]:
    """Which layers run their own indexer.

    transformers reads `indexer_types` and vLLM `index_topk_pattern`, both falling back on
    `index_topk_freq` and `index_skip_topk_offset`; where both are given they must agree, or the two
    engines would run different models.
    """
    types = values.choices("indexer_types", _INDEXERS, count)
    pattern = values.choices("index_topk_pattern", _INDEXERS, count)
    if types is not None and pattern is not None and types != pattern:
        layer = next(i for i in range(count) if types[i] != pattern[i])
        raise values.bad("index_topk_pattern", f"disagrees with indexer_types on layer {layer}")
    found = types or pattern
    if found is None:
        every = max(values.integer("index_topk_freq", least=0, default=1), 1)
        offset = values.integer("index_skip_topk_offset", least=0, default=2)
        found = tuple("full" if max(i - offset + 1, 0) % every == 0 else "shared" for i in range(count))
    if found[0] == "shared":
        raise values.bad("indexer_types", "begins with a shared layer: there is no choice to share")
    return cast(tuple[_Indexer, ...], found)


def tensors(dims: Mapping[str, Any]) -> Iterator[TensorSpec]:
    """Every weight of a model with these sizes; the keys are Architecture's fields."""
    hidden, vocab = dims["hidden_size"], dims["vocab_size"]
    yield TensorSpec("model.embed_tokens.weight", (vocab, hidden), "embedding", None, tp=True)
    for layer in (*dims["layers"], *dims["mtp_layers"]):
        if layer.mtp:
            yield from _mtp_extras(layer, hidden)
        yield from _layer(layer, dims)
    yield TensorSpec("model.norm.weight", (hidden,), "norm", None, tp=False)
    if not dims["tied_embeddings"]:
        yield TensorSpec("lm_head.weight", (vocab, hidden), "lm_head", None, tp=True)


def _mtp_extras(layer: Layer, hidden: int) -> Iterator[TensorSpec]:
    prefix = f"model.layers.{layer.index}."
    yield TensorSpec(prefix + "enorm.weight", (hidden,), "norm", layer, tp=False)
    yield TensorSpec(prefix + "hnorm.weight", (hidden,), "norm", layer, tp=False)
    yield TensorSpec(prefix + "eh_proj.weight", (hidden, 2 * hidden), "mtp", layer, tp=False)
    yield TensorSpec(prefix + "shared_head.norm.weight", (hidden,), "norm", layer, tp=False)


def _layer(layer: Layer, dims: Mapping[str, Any]) -> Iterator[TensorSpec]:
    prefix = f"model.layers.{layer.index}."
    hidden = dims["hidden_size"]
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield TensorSpec(f"{prefix}{norm}.weight", (hidden,), "norm", layer, tp=False)
    yield from _attention(layer, prefix + "self_attn.", dims)
    if layer.indexer == "full":
        yield from _indexer(layer, prefix + "self_attn.indexer.", dims)
    if not layer.moe:
        yield from _mlp(layer, prefix + "mlp.", "dense_mlp", hidden, dims["intermediate_size"])
        return
    yield TensorSpec(prefix + "mlp.gate.weight", (dims["experts"], hidden), "router", layer, tp=False)
    yield TensorSpec(
        prefix + "mlp.gate.e_score_correction_bias", (dims["experts"],), "router", layer, tp=False
    )
    width, experts = dims["moe_intermediate_size"], dims["experts"]
    yield from _mlp(layer, prefix + "mlp.experts.{expert}.", "routed_experts", hidden, width, experts)
    if dims["shared_experts"]:
        shared = width * dims["shared_experts"]
        yield from _mlp(layer, prefix + "mlp.shared_experts.", "shared_experts", hidden, shared)


def _attention(layer: Layer, prefix: str, dims: Mapping[str, Any]) -> Iterator[TensorSpec]:
    hidden, heads = dims["hidden_size"], dims["heads"]
    q_rank, kv_rank, rope = dims["q_lora_rank"], dims["kv_lora_rank"], dims["qk_rope_head_dim"]
    nope, value = dims["qk_nope_head_dim"], dims["v_head_dim"]
    shapes: list[tuple[str, tuple[int, ...], bool]] = [
        ("q_a_proj.weight", (q_rank, hidden), False),
        ("q_a_layernorm.weight", (q_rank,), False),
        ("q_b_proj.weight", (heads * (nope + rope), q_rank), True),
        ("kv_a_proj_with_mqa.weight", (kv_rank + rope, hidden), False),
        ("kv_a_layernorm.weight", (kv_rank,), False),
        ("kv_b_proj.weight", (heads * (nope + value), kv_rank), True),
        ("o_proj.weight", (hidden, heads * value), True),
    ]
    if dims["attention_bias"]:
        shapes += [
            ("q_a_proj.bias", (q_rank,), False),
            ("kv_a_proj_with_mqa.bias", (kv_rank + rope,), False),
            ("o_proj.bias", (hidden,), False),
        ]
    for name, shape, tp in shapes:
        yield TensorSpec(prefix + name, shape, "attention", layer, tp=tp)


def _indexer(layer: Layer, prefix: str, dims: Mapping[str, Any]) -> Iterator[TensorSpec]:
    """The DSA indexer: the same on every tensor-parallel rank."""
    hidden, heads, width = dims["hidden_size"], dims["index_heads"], dims["index_head_dim"]
    for name, shape in (
        ("wq_b.weight", (heads * width, dims["q_lora_rank"])),
        ("wk.weight", (width, hidden)),
        ("k_norm.weight", (width,)),
        ("k_norm.bias", (width,)),
        ("weights_proj.weight", (heads, hidden)),
    ):
        yield TensorSpec(prefix + name, shape, "indexer", layer, tp=False)


def _mlp(
    layer: Layer, prefix: str, kind: Kind, hidden: int, width: int, experts: int = 1
) -> Iterator[TensorSpec]:
    for name, shape in (
        ("gate_proj.weight", (width, hidden)),
        ("up_proj.weight", (width, hidden)),
        ("down_proj.weight", (hidden, width)),
    ):
        yield TensorSpec(prefix + name, shape, kind, layer, tp=True, experts=experts)
