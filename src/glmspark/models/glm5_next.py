"""GLM-5.3-Flash (`glm5_next`): KDA linear attention with MLA on every fourth layer, mHC, a vision tower, MTP.

Names and shapes follow the released checkpoint and transformers' `Glm5NextForConditionalGeneration`; the MTP
layer, which transformers leaves out, follows vLLM's. glmspark knows these checkpoints; serving them is the
engine's matter, see `families`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from glmspark.models import glm_moe_dsa
from glmspark.models.architecture import Architecture, Layer, LinearAttention, TensorSpec
from glmspark.models.configvalues import ConfigValues
from glmspark.models.errors import CheckpointError

__all__ = ["MODEL_TYPE", "read"]

MODEL_TYPE = "glm5_next"
TEXT_TYPE = "glm5_next_text"
_MAX_LAYERS = 4096

_ATTENTION = {
    "linear_attention": "linear",
    "deepseek_sparse_attention": "mla",
    "indexed_attention": "mla",
    "full_attention": "mla",
}
_PREFIX = "model.language_model."


def read(config: Mapping[str, Any], where: str) -> Architecture:
    """The architecture of a glm5_next config.json. Raises CheckpointError naming the key at fault."""
    whole = ConfigValues(config, where)
    text = config.get("text_config")
    if text is None and config.get("model_type") == TEXT_TYPE:
        text = config
    if not isinstance(text, dict):
        raise whole.bad("text_config", "is missing" if text is None else "is not a mapping")
    values = ConfigValues(text, f"{where}: text_config")
    count = values.integer("num_hidden_layers", most=_MAX_LAYERS)
    layers = _layers(values, count)
    # The fields that both families have mean the same: the text part is read as a GLM-5.2 config first.
    plain = dict(text)
    for key in ("indexer_types", "index_topk_pattern", "index_topk_freq"):
        plain.pop(key, None)
    plain |= {"qk_rope_head_dim": 1, "quantization_config": config.get("quantization_config")}
    if config.get("tie_word_embeddings") is not None:
        plain["tie_word_embeddings"] = config["tie_word_embeddings"]
    base = glm_moe_dsa.read(plain, values.where)
    if base.index_topk is None:
        raise values.bad("index_topk", "is missing")
    mtp = tuple(replace(layer, indexer="full") for layer in base.mtp_layers)
    dims = _Dims(values, base)
    known = replace(
        base,
        name="Glm5NextForConditionalGeneration",
        model_type=MODEL_TYPE,
        layers=layers,
        mtp_layers=mtp,
        qk_rope_head_dim=values.integer("qk_rope_head_dim", least=0, default=0),
        dtype=base.dtype or whole.text("dtype") or whole.text("torch_dtype"),
        linear=LinearAttention(dims.kda_heads, dims.kda_width, dims.kernel),
        index_pool=max(dims.pool, 1),
        specs=(),
    )
    specs = tuple(_tensors(known, dims, _vision(config, where)))
    return replace(known, specs=specs)


def _layers(values: ConfigValues, count: int) -> tuple[Layer, ...]:
    types = values.choices("layer_types", _ATTENTION, count)
    if types is None:
        types = tuple("mla" if i % 4 == 3 else "linear" for i in range(count))
    indexers = values.choices(
        "indexer_types", {"full": "full", "shared": "shared", "F": "full", "S": "shared"}, count
    )
    mlps = values.choices("mlp_layer_types", {"dense": "dense", "sparse": "sparse"}, count)
    dense = values.integer("first_k_dense_replace", least=0, default=3)
    found: list[Layer] = []
    for i in range(count):
        linear = types[i] == "linear"
        own = "full" if indexers is None else indexers[i]
        moe = i >= dense if mlps is None else mlps[i] == "sparse"
        indexer = None if linear else ("full" if own == "full" else "shared")
        found.append(Layer(i, moe, indexer, linear=linear))  # type: ignore[arg-type]
    return tuple(found)


class _Dims:
    """The sizes that GLM-5.2 does not have."""

    def __init__(self, values: ConfigValues, base: Architecture) -> None:
        linear = values.config.get("linear_attn_config") or {}
        if not isinstance(linear, dict):
            raise values.bad("linear_attn_config", "is not a mapping")
        inner = ConfigValues(linear, f"{values.where}: linear_attn_config")

        def either(key: str, own: str, default: int) -> int:
            return inner.integer(key, default=values.integer(own, default=default))

        self.kda_heads = either("num_heads", "linear_num_heads", 64)
        self.kda_width = either("head_dim", "linear_head_dim", 128)
        self.kernel = either("short_conv_kernel_size", "linear_conv_kernel_dim", 4)
        self.streams = values.integer("hc_mult", most=64, default=4)
        self.pool = values.integer("index_kpool", default=16)
        self.compressed = values.flag("index_kpool_compress", default=True)
        self.mhc = values.flag("mhc", default=True)
        self.base = base


def _tensors(architecture: Architecture, dims: _Dims, vision: tuple[TensorSpec, ...]) -> Iterator[TensorSpec]:
    """The MLA, MLP and MTP weights are GLM-5.2's under another prefix; KDA, mHC and vision come to them."""
    hidden = architecture.hidden_size
    shared = {
        "vocab_size": architecture.vocab_size,
        "hidden_size": hidden,
        "layers": architecture.layers,
        "mtp_layers": architecture.mtp_layers,
        "heads": architecture.heads,
        "q_lora_rank": architecture.q_lora_rank,
        "kv_lora_rank": architecture.kv_lora_rank,
        "qk_nope_head_dim": architecture.qk_nope_head_dim,
        "qk_rope_head_dim": architecture.qk_rope_head_dim,
        "v_head_dim": architecture.v_head_dim,
        "intermediate_size": architecture.intermediate_size,
        "moe_intermediate_size": architecture.moe_intermediate_size,
        "experts": architecture.experts,
        "shared_experts": architecture.shared_experts,
        "index_heads": architecture.index_heads,
        "index_head_dim": architecture.index_head_dim,
        "tied_embeddings": architecture.tied_embeddings,
        "attention_bias": architecture.attention_bias,
    }
    for spec in glm_moe_dsa.tensors(shared):
        layer = spec.layer
        if layer is not None and layer.linear and spec.kind in ("attention", "indexer"):
            continue
        name = _PREFIX + spec.name.removeprefix("model.") if spec.name.startswith("model.") else spec.name
        yield replace(spec, name=name)
    for layer in (*architecture.layers, *architecture.mtp_layers):
        prefix = f"{_PREFIX}layers.{layer.index}."
        if layer.linear:
            yield from _kda(layer, prefix + "self_attn.", hidden, dims)
        elif layer.indexer == "full" and dims.compressed:
            yield from _pooling(layer, prefix + "self_attn.indexer.", architecture, dims)
        if dims.mhc and not layer.mtp:
            yield from _mhc(layer, prefix, hidden, dims.streams)
    yield from vision


def _kda(layer: Layer, prefix: str, hidden: int, dims: _Dims) -> Iterator[TensorSpec]:
    heads, width = dims.kda_heads, dims.kda_heads * dims.kda_width
    shapes: list[tuple[str, tuple[int, ...], bool]] = [
        ("A_log", (heads,), True),
        ("dt_bias", (width,), True),
        ("b_proj.weight", (heads, hidden), True),
        ("f_a_proj.weight", (dims.kda_width, hidden), False),
        ("f_b_proj.weight", (width, dims.kda_width), True),
        ("g_a_proj.weight", (dims.kda_width, hidden), False),
        ("g_b_proj.weight", (width, dims.kda_width), True),
        ("o_norm.weight", (dims.kda_width,), False),
        ("o_proj.weight", (hidden, width), True),
    ]
    for part in "qkv":
        shapes.append((f"{part}_proj.weight", (width, hidden), True))
        shapes.append((f"{part}_conv1d.weight", (width, 1, dims.kernel), True))
    for name, shape, tp in shapes:
        yield TensorSpec(prefix + name, shape, "linear_attention", layer, tp=tp)


def _pooling(layer: Layer, prefix: str, architecture: Architecture, dims: _Dims) -> Iterator[TensorSpec]:
    """What compresses `index_kpool` keys into one."""
    width = architecture.index_head_dim
    for name, shape in (
        ("index_kpool_compress_ape", (dims.pool, width)),
        ("index_kpool_compress_gate", (width, architecture.hidden_size)),
    ):
        yield TensorSpec(prefix + name, shape, "indexer", layer, tp=False)


def _mhc(layer: Layer, prefix: str, hidden: int, streams: int) -> Iterator[TensorSpec]:
    """Manifold-constrained hyper-connections: how the residual streams mix before and after a block."""
    mixes = streams * (streams + 2)
    for block in ("attn", "ffn"):
        for name, shape in (("base", (mixes,)), ("fn", (mixes, streams * hidden)), ("scale", (3,))):
            yield TensorSpec(f"{prefix}hc_{block}_{name}", shape, "hyper_connections", layer, tp=False)


def _vision(config: Mapping[str, Any], where: str) -> tuple[TensorSpec, ...]:
    given = config.get("vision_config")
    if given is None:
        return ()  # text only
    if not isinstance(given, dict):
        raise CheckpointError(
            f"{where}: vision_config is not a mapping",
            step="read config.json",
            next="fetch config.json again",
        )
    values = ConfigValues(given, f"{where}: vision_config")
    hidden, depth = values.integer("hidden_size"), values.integer("depth", most=_MAX_LAYERS)
    heads, inner = values.integer("num_heads", most=hidden), values.integer("intermediate_size")
    out, projection = values.integer("out_hidden_size"), values.integer("projection_intermediate_size")
    patch, merge = values.integer("patch_size", most=1024), values.integer("spatial_merge_size", most=64)
    frames, channels = values.integer("temporal_patch_size", most=64), values.integer("in_channels", most=64)
    biased = values.flag("attention_bias", default=True)
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("patch_embed.proj.weight", (hidden, channels, frames, patch, patch)),
        ("patch_embed.proj.bias", (hidden,)),
        ("post_layernorm.weight", (hidden,)),
        ("downsample.weight", (out, hidden, merge, merge)),
        ("downsample.bias", (out,)),
        ("merger.proj.weight", (out, out)),
        ("merger.post_projection_norm.weight", (out,)),
        ("merger.post_projection_norm.bias", (out,)),
        ("merger.gate_proj.weight", (projection, out)),
        ("merger.up_proj.weight", (projection, out)),
        ("merger.down_proj.weight", (out, projection)),
    ]
    for block in range(depth):
        own = f"blocks.{block}."
        linears = [
            ("attn.qkv", (3 * hidden, hidden)),
            ("attn.proj", (hidden, hidden)),
            ("mlp.gate_proj", (inner, hidden)),
            ("mlp.up_proj", (inner, hidden)),
            ("mlp.down_proj", (hidden, inner)),
        ]
        for name, shape in linears:
            shapes.append((f"{own}{name}.weight", shape))
            if biased:
                shapes.append((f"{own}{name}.bias", shape[:1]))
        shapes += [(f"{own}attn.{part}_norm.weight", (hidden // heads,)) for part in "qk"]
        shapes += [(f"{own}norm{n}.weight", (hidden,)) for n in (1, 2)]
    return tuple(
        TensorSpec(f"model.visual.{name}", shape, "vision", None, tp=False) for name, shape in shapes
    )
