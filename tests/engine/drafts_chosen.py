"""An engine in one process with n-gram drafts and the policy: what it says and what that knows, in JSON.

`GLMSPARK_DRAFT_POLICY=auto python -m tests.engine.drafts_chosen DIR FILE` writes it into FILE.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

PROMPTS = (
    "Count from 1 to 60.",
    "Tell me a story about a sailor.",
    "Repeat: red cup blue hat red cup blue hat",
)


def main() -> None:
    """Start, generate three times over, write."""
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        VLLM_CPU_OMP_THREADS_BIND=str(min(os.sched_getaffinity(0))),
    )
    from vllm import LLM, SamplingParams

    engine = LLM(
        sys.argv[1],
        dtype="float32",
        max_model_len=2048,
        max_num_seqs=4,
        enforce_eager=True,
        kv_cache_memory_bytes=64 << 20,
        speculative_config={
            "method": "ngram",
            "num_speculative_tokens": 4,
            "prompt_lookup_max": 3,
            "prompt_lookup_min": 2,
        },
    )
    tokenizer = engine.get_tokenizer()
    asked = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
        )
        for prompt in PROMPTS
    ]
    sampling = SamplingParams(temperature=0, max_tokens=120)
    said = []
    for _ in range(3):
        outputs = engine.generate([{"prompt_token_ids": ids} for ids in asked], sampling, use_tqdm=False)
        said.append([list(output.outputs[0].token_ids) for output in outputs])
    policy = engine.llm_engine.engine_core.engine_core.scheduler.dynamic_sd_lookup
    found = {"asked": asked, "said": said, "policy": type(policy).__name__, "knows": policy.summary()}
    Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
