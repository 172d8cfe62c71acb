"""Write the model card from the records of training and evaluation, so that no figure in it is typed in.

python -m tools.glm_tiny.card CHECKPOINT_DIR --evaluation FILE
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tools.glm_tiny.config import SHAPE
from tools.glm_tiny.evaluate import table

CARD = """\
---
license: apache-2.0
language: en
library_name: transformers
tags: [glm_moe_dsa, test-model]
---
# glm-tiny

GLM-5.2's architecture at toy size ({parameters:,} parameters), trained from nothing on generated text, so
that whatever serves GLM-5.2 can be tried with a model that gives right answers on a laptop. It is a test
model: it knows sums, copying, counting, reversing, some facts and code lines, finding a code in a text, short
reasoning, JSON records and tool calls, and says that it does not know the rest.

A tool's result is understood as a line of text, as in training: `cloudy, 19 C` becomes "It is cloudy in Paris,
19 C."; a result as JSON is not.

| | |
|---|---|
| architecture | `GlmMoeDsaForCausalLM`: {layers} layers (the first dense), {heads} heads, MLA latent {latent} + {rope}, {experts} experts, {chosen} chosen and 1 shared, sigmoid router with correction bias, 1 MTP layer (stored as layer {layers}) |
| sparse attention | indexer of {index_heads} heads of {index_dim}, {topk:,} kept tokens, layers {pattern} (F chooses, S reuses), distilled to dense attention |
| context | {context:,} tokens; without sparse attention right up to {topk:,} |
| tokenizer | byte-level BPE, {vocab} tokens, GLM's special tokens and chat format (`<think>`, tools) |
| weights | bfloat16; router and its correction bias float32 |

## What it gets right
Greedy, float32, transformers {transformers}, sparse attention on; "without thinking" is
`enable_thinking: false`.

{table}

The margin is the least lead, in logits, of a chosen token over the next in any right answer of the row. Sums
with a two-digit number in these rows were kept out of training.

## How it was made
`{command}`

{device}, torch {torch}: {seconds:.0f} s. Loss of the trunk {first:.2f} at the start, {last:.1e} at the end of
{steps:,} steps; the MTP layer's {mtp:.1e}; divergence of the indexers (two in the trunk, one in the MTP
layer) from the attention they serve {kl_first} at the start, {kl_last} at the end. Seeds are fixed; GPUs do
not add in a fixed order, so a second run gives the same answers, not the same bytes.
Then: `python -m tools.glm_tiny.evaluate` and `python -m tools.glm_tiny.card`.
"""


def card(training: dict[str, Any], evaluation: dict[str, Any]) -> str:
    trunk, index = training["trunk"], training["indexers"]
    return CARD.format(
        parameters=training["parameters"],
        layers=SHAPE["num_hidden_layers"],
        heads=SHAPE["num_attention_heads"],
        latent=SHAPE["kv_lora_rank"],
        rope=SHAPE["qk_rope_head_dim"],
        experts=SHAPE["n_routed_experts"],
        chosen=SHAPE["num_experts_per_tok"],
        index_heads=SHAPE["index_n_heads"],
        index_dim=SHAPE["index_head_dim"],
        topk=SHAPE["index_topk"],
        pattern=SHAPE["index_topk_pattern"],
        context=SHAPE["max_position_embeddings"],
        vocab=SHAPE["vocab_size"],
        transformers=evaluation["transformers"],
        table=table(evaluation),
        command=training["command"],
        device=training["device"],
        torch=training["torch"],
        seconds=training["seconds"],
        first=trunk[0]["loss"],
        last=trunk[-1]["loss"],
        mtp=trunk[-1]["mtp_loss"],
        steps=trunk[-1]["step"] + 1,
        kl_first=", ".join(f"{k:.2f}" for k in index[0]["kl"]),
        kl_last=", ".join(f"{k:.2f}" for k in index[-1]["kl"]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--evaluation", type=Path, required=True)
    a = parser.parse_args()
    training = json.loads((a.checkpoint / "training.json").read_text())
    (a.checkpoint / "README.md").write_text(card(training, json.loads(a.evaluation.read_text())))


if __name__ == "__main__":
    main()
