"""An engine in one process, for tests that want to see it fail: continues one prompt and prints two lines.

First the prompt's token ids, then the continuation's. `python -m tests.engine.engine_in_one_process DIR`.
"""

from __future__ import annotations

import argparse
import json
import os
from functools import partial

PROMPT = list(range(10, 60))


def main() -> None:
    """Start, generate, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--worker-cls", default="auto")
    parser.add_argument("--custom-op", action="append", default=[])
    parser.add_argument("--without", action="append", default=[], metavar="PATCH")
    parser.add_argument("--set", type=json.loads, default={}, metavar="JSON", help="further engine arguments")
    args = parser.parse_args()
    cores = [str(core) for core in sorted(os.sched_getaffinity(0))]
    bind = "|".join(cores[i % len(cores)] for i in range(args.stages))
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1", VLLM_CPU_OMP_THREADS_BIND=bind
    )
    from glmspark.engine import registry

    left = tuple(patch for patch in registry.PATCHES if patch.name not in args.without)
    registry.apply = partial(registry.apply, patches=left)
    from vllm import LLM, SamplingParams

    engine = LLM(
        args.checkpoint,
        dtype="float32",
        max_model_len=2048,
        enforce_eager=True,
        kv_cache_memory_bytes=64 << 20,
        pipeline_parallel_size=args.stages,
        worker_cls=args.worker_cls,
        compilation_config={"custom_ops": args.custom_op},
        **args.set,
    )
    sampling = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    (output,) = engine.generate([{"prompt_token_ids": PROMPT}], sampling, use_tqdm=False)
    print(*PROMPT)
    print(*output.outputs[0].token_ids)


if __name__ == "__main__":
    main()
