"""An engine in one process, for tests that want to see it fail: continues one prompt and prints two lines.

First the prompt's token ids, then the continuation's; before them the bytes that the model and its KV cache
hold, as JSON. `python -m tests.engine.engine_in_one_process DIR`.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vllm import LLM

PROMPT = list(range(10, 60))
COPIES = ("W_UK_T", "W_UV")


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

    loaded = watch_loading()
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
    print(json.dumps(held(engine, loaded)))
    print(*PROMPT)
    print(*output.outputs[0].token_ids)


def size(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of tensors, of those that share storage once."""
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    return sum(storages.values())


def watch_loading() -> list[int]:
    """Where the bytes of the parameters will be, as loaded: the CPU's kernels then hide them in forms of
    their own."""
    from vllm.model_executor.model_loader import base_loader

    upstream, found = base_loader.process_weights_after_loading, list[int]()

    def watched(model: torch.nn.Module, *rest: object) -> None:
        found.append(size(model.parameters()))
        upstream(model, *rest)

    base_loader.process_weights_after_loading = watched
    return found


def held(engine: LLM, loaded: list[int]) -> dict[str, int]:
    """Bytes that the model and its KV cache hold. MLA's own copy of its up-projection comes to what was
    loaded."""
    runner = engine.llm_engine.model_executor.driver_worker.worker.model_runner
    found = (getattr(module, name, None) for module in runner.get_model().modules() for name in COPIES)
    copies = [one for one in found if isinstance(one, torch.Tensor)]
    return {"weights": loaded[0] + size(copies), "kv": size(runner.kv_caches)}


if __name__ == "__main__":
    main()
