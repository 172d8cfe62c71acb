"""The shape of glm-tiny: every part of GLM-5.2's architecture, at toy size.

What is kept at the real size is what kernels are written for: the MLA latent (512 + 64), the indexer
(32 heads of 128, 2,048 kept tokens). What is scaled down divides for TP 1, 2 and 4 and PP 1 to 4.
"""

from __future__ import annotations

from typing import Any

VOCAB_SIZE = 576
CONTEXT = 8192
EOS = ("<|endoftext|>", "<|user|>", "<|observation|>")

#: Fields of `GlmMoeDsaConfig`; names as in the released GLM-5.2 config.json.
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 64,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "moe_layer_freq": 1,
    "index_topk": 2048,
    "index_n_heads": 32,
    "index_head_dim": 128,
    # Layers 0 and 2 choose tokens, 1 and 3 reuse the choice ("F" and "S", as in GLM-5.2's pattern).
    "index_topk_pattern": "FSFS",
    "indexer_types": ["full", "shared", "full", "shared"],
    "indexer_rope_interleave": True,
    "rope_interleave": True,
    "num_nextn_predict_layers": 1,
    "index_share_for_mtp_iteration": True,
    "max_position_embeddings": CONTEXT,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
}


def model_config(token_ids: dict[str, int], dtype: str = "bfloat16") -> dict[str, Any]:
    """config.json for the checkpoint; `token_ids` maps special tokens to their ids."""
    return {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        **SHAPE,
        "bos_token_id": None,
        "pad_token_id": token_ids["<|endoftext|>"],
        "eos_token_id": [token_ids[t] for t in EOS],
        "use_cache": True,
        "dtype": dtype,
    }
