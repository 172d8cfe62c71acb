"""glm-tiny on CUDA: sparse attention as stock vLLM has it, dense attention by our patch, MTP speculation.

    python tests/gpu/glm_tiny_cuda.py [CASE ...]

Run by hand on a machine with a GPU (docs/gpu-runs.md records the runs). Each case is one engine in a process
of its own; the table is printed last. Exits with 1 if an answer is wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "src/glmspark/recipes/checkpoints/glm-tiny"

#: name -> (environment, engine arguments, tokens of the longest needle)
CASES: dict[str, tuple[dict[str, str], dict[str, Any], int]] = {
    "sparse, graphs": ({}, {"max_model_len": 8192}, 6000),
    "sparse, MTP": (
        {},
        {"max_model_len": 8192, "speculative_config": {"method": "mtp", "num_speculative_tokens": 1}},
        6000,
    ),
    "dense, graphs": ({"GLMSPARK_DENSE_ATTENTION": "1"}, {"max_model_len": 2048}, 1500),
}


def run(case: str) -> dict[str, Any]:
    """Ask one engine the fixed prompts and a needle; returns the case's row."""
    sys.path.insert(0, str(ROOT))
    from vllm import LLM, SamplingParams

    from tools.glm_tiny.conversation import call_text
    from tools.glm_tiny.prompts import FIXED_PROMPTS, needles

    _environment, arguments, longest = CASES[case]
    start = time.time()
    arguments |= {"dtype": "bfloat16", "gpu_memory_utilization": 0.1, "max_num_seqs": 32}
    engine = LLM(str(CHECKPOINT), disable_log_stats=False, **arguments)
    loaded = time.time() - start
    tokenizer = engine.get_tokenizer()
    asked = [*FIXED_PROMPTS, *needles(longest, 2).prompts]
    ids = [
        tokenizer.apply_chat_template(
            p.messages,
            tools=p.declared,
            tokenize=True,
            add_generation_prompt=True,
            return_dict=False,
            **p.template,
        )
        for p in asked
    ]
    stop = list(tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|user|>", "<|observation|>"]))
    outputs = engine.generate(
        [{"prompt_token_ids": i} for i in ids],
        [SamplingParams(temperature=0, max_tokens=p.max_tokens, stop_token_ids=stop) for p in asked],
    )
    wrong = []
    for prompt, output in zip(asked, outputs, strict=True):
        text = output.outputs[0].text
        said = text.partition("</think>")[2] if prompt.thinking else text
        if said != (call_text(*prompt.call) if prompt.call else prompt.expect):
            wrong.append([prompt.user[-60:], text[-120:]])
    accepted = {
        m.name.rpartition(":")[2]: m.value
        for m in engine.get_metrics()
        if m.name in ("vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens")
    }
    drafts = accepted.get("spec_decode_num_drafts", 0)
    length = 1 + accepted.get("spec_decode_num_accepted_tokens", 0) / drafts if drafts else None
    return {
        "case": case,
        "right": len(asked) - len(wrong),
        "of": len(asked),
        "longest_prompt": max(map(len, ids)),
        "mean_accepted_length": length,
        "start_s": round(loaded, 1),
        "wrong": wrong,
    }


def main(chosen: list[str]) -> int:
    if chosen[:1] == ["--case"]:
        print("RESULT " + json.dumps(run(chosen[1])), flush=True)
        return 0
    rows = []
    for case in chosen or CASES:
        environment = {**os.environ, **CASES[case][0]}
        done = subprocess.run(
            [sys.executable, __file__, "--case", case],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        found = [
            line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")
        ]
        if found:
            rows.append(json.loads(found[0]))
        else:
            rows.append({"case": case, "right": 0, "of": 0, "wrong": [["", f"exit {done.returncode}"]]})
            print(done.stdout[-3000:])
    import torch
    import vllm

    print(f"\n{torch.cuda.get_device_name()}, vLLM {vllm.__version__}, torch {torch.__version__}")
    print(f"{'case':18} {'right':>9} {'longest':>8} {'accepted':>9} {'start':>7}")
    for r in rows:
        length = f"{r['mean_accepted_length']:.3f}" if r.get("mean_accepted_length") else "-"
        right = f"{r['right']} of {r['of']}"
        print(
            f"{r['case']:18} {right:>9} {r.get('longest_prompt', 0):8} {length:>9} {r.get('start_s', 0):6} s"
        )
        for prompt, text in r["wrong"]:
            print(f"    {prompt!r} -> {text!r}")
    return int(any(r["wrong"] for r in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
