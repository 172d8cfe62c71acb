"""The auxiliary hidden states that a drafter on the last stage would see: one prompt's, in JSON.

`python -m tests.engine.aux_states_of_stages DIR FILE --stages N` writes the layers' states into FILE.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

PROMPT = list(range(10, 40))
LAYERS = (1, 2, 3)


def observe(worker: Any) -> None:
    """In a worker: want the states, make room to receive them, and remember what the model hands out."""
    from vllm.distributed import get_pp_group
    from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import (
        reserve_aux_intermediate_tensor_slots,
        verify_supports_aux_hidden_states_over_pp,
    )

    runner = worker.model_runner
    model = runner.model
    model.set_aux_hidden_state_layers(LAYERS)
    if get_pp_group().world_size > 1:
        verify_supports_aux_hidden_states_over_pp(model, "eagle3")
        reserve_aux_intermediate_tensor_slots(model)
    if not get_pp_group().is_first_rank:
        runner.intermediate_tensors = model.make_empty_intermediate_tensors(
            batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
        )
    worker.seen = []
    if get_pp_group().is_last_rank:
        forward = model.forward

        def remember(*args: Any, **kwargs: Any) -> Any:
            hidden_states, states = forward(*args, **kwargs)
            worker.seen.append([state.double().tolist() for state in states])
            return hidden_states

        model.forward = remember


def report(worker: Any) -> list[Any]:
    """The states of the first forward pass; nothing on other stages than the last."""
    return worker.seen[:1]


def main() -> None:
    """Start, generate, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("output", type=Path)
    parser.add_argument("--stages", type=int, default=1)
    args = parser.parse_args()
    cores = [str(core) for core in sorted(os.sched_getaffinity(0))]
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_ALLOW_INSECURE_SERIALIZATION="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_CPU_OMP_THREADS_BIND="|".join(cores[i % len(cores)] for i in range(args.stages)),
    )
    from vllm import LLM, SamplingParams

    engine = LLM(
        args.checkpoint,
        dtype="float32",
        max_model_len=2048,
        enforce_eager=True,
        kv_cache_memory_bytes=64 << 20,
        pipeline_parallel_size=args.stages,
    )
    engine.collective_rpc(observe)
    sampling = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    engine.generate([{"prompt_token_ids": PROMPT}], sampling, use_tqdm=False)
    (states,) = (seen[0] for seen in engine.collective_rpc(report) if seen)
    args.output.write_text(json.dumps(states))


if __name__ == "__main__":
    main()
