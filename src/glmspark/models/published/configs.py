"""config.json of the released models, as far as a plan computes with it.

GLM-5.2 and GLM-5.3 share all of it. Values as in transformers' `models/glm_moe_dsa` and `models/glm5_next`
and in the released config.json files.
"""

from __future__ import annotations

from typing import Any

__all__ = ["FLASH", "GLM_5_2", "GLM_5_2_REAP"]

GLM_5_2: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "dtype": "bfloat16",
    "vocab_size": 154880, "hidden_size": 6144, "num_hidden_layers": 78, "num_attention_heads": 64,
    "num_key_value_heads": 64, "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64, "v_head_dim": 256, "intermediate_size": 12288, "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3,
    "index_topk": 2048, "index_n_heads": 32, "index_head_dim": 128,
    "index_topk_pattern": "FFF" + "SSSF" * 18 + "SSS", "num_nextn_predict_layers": 1,
    # transformers' default is 202,752; the model is served, and reported to be made, for a million.
    "max_position_embeddings": 1048576, "tie_word_embeddings": False,
}  # fmt: skip

GLM_5_2_REAP: dict[str, Any] = {**GLM_5_2, "n_routed_experts": 156, "index_topk_pattern": "F" * 78}
"""Pruned from 256 to 156 experts a layer, with an indexer declared on each layer."""

FLASH: dict[str, Any] = {
    "architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next", "dtype": "bfloat16",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "glm5_next_text", "vocab_size": 154880, "hidden_size": 4096, "num_hidden_layers": 45,
        "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256, "intermediate_size": 12288,
        "moe_intermediate_size": 2048, "n_routed_experts": 288, "num_experts_per_tok": 8,
        "n_shared_experts": 1, "first_k_dense_replace": 3, "index_topk": 2048, "index_n_heads": 32,
        "index_head_dim": 128, "index_kpool": 4, "hc_mult": 4, "num_nextn_predict_layers": 1,
        "max_position_embeddings": 1048576,
        "linear_attn_config": {"num_heads": 64, "head_dim": 128, "short_conv_kernel_size": 4},
    },
    "vision_config": {
        "depth": 24, "hidden_size": 1024, "num_heads": 16, "intermediate_size": 4096, "in_channels": 3,
        "out_hidden_size": 4096, "projection_intermediate_size": 10240, "patch_size": 14,
        "spatial_merge_size": 2, "temporal_patch_size": 2,
    },
}  # fmt: skip
