"""glm-tiny-flash: GLM-5.3-Flash's architecture (`glm5_next`) at toy size, with random weights.

Three linear-attention (KDA) layers to one MLA layer without rope, an indexer that pools four keys, four
residual streams (mHC), clamped SwiGLU, a small vision tower and an MTP layer. Field names are the released
config's; the tokenizer is glm-tiny's.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools.glm_tiny.variants import VariantError
from tools.glm_tiny.variants.calibrate import one_thread
from tools.glm_tiny.variants.checkpoint import COMPANIONS, Checkpoint, read

LAYERS = 8
SEED = 53
PREFIX = "model.language_model.layers."
#: Kept in float32, as released: what the recurrence, the residual mixing and the router add up.
FLOAT32 = (".A_log", ".dt_bias", "_conv1d.weight", ".e_score_correction_bias", ".hc_attn_", ".hc_ffn_")


def text_config(source: dict[str, Any], layers: int = LAYERS) -> dict[str, Any]:
    """The text part of config.json for a glm-tiny config: same widths and vocabulary, Flash's layers.

    As released, every fourth layer (3, 7, ...) is MLA and the first three have a dense MLP.
    """
    mla = [n for n in range(layers) if n % 4 == 3]
    kda = [n for n in range(layers) if n % 4 != 3]
    same = (
        "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_attention_heads",
        "num_key_value_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim",
        "n_routed_experts", "num_experts_per_tok", "n_shared_experts", "n_group", "topk_group",
        "norm_topk_prob", "routed_scaling_factor", "scoring_func", "topk_method", "index_topk",
        "index_n_heads", "index_head_dim", "max_position_embeddings", "rms_norm_eps", "hidden_act",
        "attention_bias", "attention_dropout", "pad_token_id", "eos_token_id",
    )  # fmt: skip
    return {
        "model_type": "glm5_next_text",
        **{name: source[name] for name in same},
        "num_hidden_layers": layers,
        "layer_types": [
            "deepseek_sparse_attention" if n in mla else "linear_attention" for n in range(layers)
        ],
        "linear_attn_config": {
            "num_heads": source["num_attention_heads"],
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0,
            "kda_layers": kda,
            "full_attn_layers": mla,
        },
        "mla_use_nope": True,
        "qk_rope_head_dim": 0,
        "indexer_types": ["full"] * layers,
        "indexer_rope_interleave": True,
        "index_kpool": 4,
        "index_kpool_compress": True,
        "index_kpool_always_select_tail": True,
        "index_share_for_mtp_iteration": True,
        "first_k_dense_replace": 3,
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * (layers - 3),
        "moe_router_dtype": "float32",
        "swiglu_limit": 10.0,
        "mhc": True,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "num_nextn_predict_layers": 1,
        "initializer_range": 0.02,
        "bos_token_id": None,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }


def vision_config(hidden: int) -> dict[str, Any]:
    """The vision part: one block instead of 24; `hidden` is the text model's width."""
    return {
        "model_type": "glm5_next_vision",
        "depth": 1,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 4,
        "out_hidden_size": hidden,
        "projection_intermediate_size": 128,
        "in_channels": 3,
        "image_size": 56,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "rms_norm_eps": 1e-5,
        "swiglu_limit": 10.0,
    }


def model_config(source: dict[str, Any], token_ids: dict[str, int], layers: int = LAYERS) -> dict[str, Any]:
    """config.json; `token_ids` maps the tokenizer's special tokens to their ids.

    glm-tiny's tokenizer has no token for a piece of an image: two mask tokens that no text contains stand in.
    """
    if layers % 4:
        raise VariantError(
            f"{layers} layers: give a multiple of 4, so that each MLA layer has its three KDA layers"
        )
    return {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "dtype": "bfloat16",
        "image_token_id": token_ids["[MASK]"],
        "video_token_id": token_ids["[sMASK]"],
        "image_start_token_id": token_ids["<|begin_of_image|>"],
        "image_end_token_id": token_ids["<|end_of_image|>"],
        "video_start_token_id": token_ids["<|begin_of_video|>"],
        "video_end_token_id": token_ids["<|end_of_video|>"],
        "text_config": text_config(source, layers),
        "vision_config": vision_config(source["hidden_size"]),
        "tie_word_embeddings": False,
    }


def _random_weights(config: dict[str, Any]) -> dict[str, Tensor]:
    """transformers' initial weights under the names of the released checkpoint."""
    from safetensors.torch import load_file
    from transformers import Glm5NextConfig, Glm5NextForConditionalGeneration
    from transformers.utils import logging

    logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]), one_thread(), tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(SEED)
        wide = {**config, "dtype": "float32", "text_config": {**config["text_config"], "dtype": "float32"}}
        model = Glm5NextForConditionalGeneration(Glm5NextConfig.from_dict(wide))
        # Saving turns transformers' names and joined tensors back into the released ones.
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def _mtp_weights(tensors: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """An MTP layer, which transformers does not build: the last MLA layer without mHC, and what joins it."""
    text = config["text_config"]
    last, number = text["num_hidden_layers"] - 1, text["num_hidden_layers"]
    hidden, prefix = text["hidden_size"], f"{PREFIX}{number}."
    layer = {
        name.replace(f"{PREFIX}{last}.", prefix): tensor.clone()
        for name, tensor in tensors.items()
        if name.startswith(f"{PREFIX}{last}.") and ".hc_" not in name
    }
    seeded = torch.Generator().manual_seed(SEED)
    join = torch.randn(hidden, 2 * hidden, generator=seeded) * text["initializer_range"]
    norms = {f"{prefix}{name}.weight": torch.ones(hidden) for name in ("enorm", "hnorm", "shared_head.norm")}
    return {**layer, **norms, f"{prefix}eh_proj.weight": join}


def derive(source: Path, *, layers: int = LAYERS) -> Checkpoint:
    """A `glm5_next` checkpoint of `layers` layers with the tokenizer and widths of the one in `source`."""
    from tokenizers import Tokenizer

    base = read(source)
    tokenizer = Tokenizer.from_str(base.files["tokenizer.json"])
    config = model_config(base.config, tokenizer.get_vocab(), layers)
    tensors = _random_weights(config)
    tensors |= _mtp_weights(tensors, config)
    stored = {
        name: tensor if any(part in name for part in FLOAT32) else tensor.to(torch.bfloat16)
        for name, tensor in sorted(tensors.items())
    }
    return Checkpoint(config, stored, {n: t for n, t in base.files.items() if n in COMPANIONS})
