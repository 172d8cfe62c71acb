"""Write a trained model as a checkpoint that transformers and vLLM read."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from tools.glm_tiny.config import EOS, model_config
from tools.glm_tiny.model import GlmTiny, checkpoint_tensors
from tools.glm_tiny.tokenizer import MARKUP, SPECIAL, save_tokenizer


def save_checkpoint(
    model: GlmTiny, tokenizer: Tokenizer, out: Path, dtype: torch.dtype = torch.bfloat16
) -> None:
    """config.json, generation_config.json, tokenizer and model.safetensors in `out`.

    Weights are stored in `dtype`, the router and its correction bias in float32, as GLM-5.2 checkpoints do.
    """
    save_tokenizer(tokenizer, out)
    ids = {t: tokenizer.token_to_id(t) for t in (*SPECIAL, *MARKUP)}
    config = model_config(ids, str(dtype).removeprefix("torch."))
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {
        "eos_token_id": [ids[t] for t in EOS],
        "pad_token_id": ids["<|endoftext|>"],
        "do_sample": False,
    }
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    tensors = {}
    for name, tensor in checkpoint_tensors(model).items():
        keep = torch.float32 if ".mlp.gate." in name else dtype
        tensors[name] = tensor.detach().to("cpu", keep).contiguous()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)  # safetensors makes it private
