"""DeepSeek-V4-Flash, of which some measurements are: not planned for, but its steps obey the same physics.

Sizes of its config.json and of its card: FP4 experts, FP8 for the rest. Of V4.1-Flash the same trunk is
assumed: its Engram tables are looked up, not read through.
"""

from __future__ import annotations

from functools import cache

from glmspark.models.architecture import Architecture, Kind, Layer
from glmspark.models.outline import Outline, Weights

LAYERS, HIDDEN, EXPERTS, CHOSEN, WIDTH, VOCAB = 43, 4096, 256, 6, 2048, 129280
EXPERT = 3 * HIDDEN * WIDTH
ATTENTION = 4096 * 1024 + 1024 * 64 * 512 + 4096 * 512 + 64 * 512 * 1024 + 8 * 1024 * 4096
FP4, FP8 = 4.25 / 8, 8.06 / 8


@cache
def deepseek(name: str) -> Outline:
    """Its outline."""
    layers = tuple(Layer(i, True, "full") for i in range(LAYERS))
    mtp = (Layer(LAYERS, True, "full", mtp=True),)
    weights = [Weights("lm_head", None, True, 1, "bf16", VOCAB * HIDDEN * 2, VOCAB * HIDDEN)]
    for layer in (*layers, *mtp):
        parts: list[tuple[Kind, int, str, float, int]] = [
            ("routed_experts", EXPERT * EXPERTS, "mxfp4 g32", FP4, EXPERTS),
            ("shared_experts", EXPERT, "fp8 128x128", FP8, 1),
            ("attention", ATTENTION, "fp8 128x128", FP8, 1),
        ]
        weights += [
            Weights(kind, layer, True, experts, form, int(count * size))
            for kind, count, form, size, experts in parts
        ]
    model = Architecture(
        name=name, model_type="deepseek_v4", vocab_size=VOCAB, hidden_size=HIDDEN, layers=layers,
        mtp_layers=mtp, heads=64, q_lora_rank=1024, kv_lora_rank=512, qk_nope_head_dim=448,
        qk_rope_head_dim=64, v_head_dim=512, intermediate_size=0, moe_intermediate_size=WIDTH,
        experts=EXPERTS, experts_per_token=CHOSEN, shared_experts=1, index_topk=512, index_heads=64,
        index_head_dim=128, max_position=1048576, tied_embeddings=False, attention_bias=False,
        dtype="bfloat16", quantization="fp8", specs=(), index_pool=4,
    )  # fmt: skip
    return Outline(name, model, tuple(weights), True, True, exact=False)
