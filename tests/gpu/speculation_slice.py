"""Cases of tests/gpu/speculation_cuda.py with GLM-5.2's dimensions and made-up weights."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

from tests.gpu.speculation_common import Case, Counts, drafting, turn


def glm_52_drafter(target: Path, aux: tuple[int, ...], vocab: int, window: int | None, **more: Any) -> None:
    """config.json of a drafter with the published one's size: 5 layers, and 3 billion parameters with its
    output matrix, which fixes heads and MLP to about these."""
    from glmspark.speculator.shape import Shape

    shape = Shape(
        6144, vocab, aux, mask_token=vocab - 1, layers=5, heads=48, kv_heads=8, head_dim=128,
        intermediate_size=12288, window=window, markov_rank=256, max_positions=202752,
    )  # fmt: skip
    target.mkdir()
    (target / "config.json").write_text(json.dumps(shape.config("slice") | more))


def published(case: Case, work: Path) -> dict[str, Any]:
    """78 layers of GLM-5.2's dimensions with few narrow experts, and the published drafter's configuration;
    all weights made up."""
    import torch
    from vllm import LLM, SamplingParams

    from bench.glm_slice import write

    target, drafter = work / "whole", work / "published"
    write(target, layers=78, experts=8, vocab=154_880, bf16=True, weights=False)
    config = json.loads((target / "config.json").read_text()) | {"moe_intermediate_size": 256}
    (target / "config.json").write_text(json.dumps(config))
    glm_52_drafter(drafter, (8, 23, 39, 55, 70), 154_880, None, sample_from_anchor=False)
    begin = time.time()
    engine = LLM(
        str(target), load_format="dummy", max_model_len=2048, max_num_seqs=4, skip_tokenizer_init=True,
        enforce_eager=True, disable_log_stats=False, gpu_memory_utilization=0.4,
        kv_cache_memory_bytes=3 << 30,
        speculative_config={"method": "dspark", "model": str(drafter), "num_speculative_tokens": 7},
    )  # fmt: skip
    loaded = time.time() - begin
    counts = Counts(engine)
    sampling = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=1, detokenize=False)
    with turn(work):
        outputs = engine.generate(
            [{"prompt_token_ids": [(7 * n + k) % 150_000 for n in range(300)]} for k in range(4)], sampling,
            use_tqdm=False,
        )  # fmt: skip
    finite = all(
        value.logprob > -1e4
        for output in outputs
        for place in output.outputs[0].logprobs
        for value in place.values()
    )
    steps, accepted, _ = counts.look()
    memory = torch.cuda.mem_get_info()
    note = (
        f"start {loaded:.0f} s; {steps} steps with 7 drafts each, {accepted} accepted; logprobs "
        f"{'finite' if finite else 'NOT FINITE'}; {(memory[1] - memory[0]) / 1e9:.0f} GB in use by all"
    )
    return {"ok": finite and steps > 0, "note": note}


def depth(case: Case, work: Path) -> dict[str, Any]:
    """The drafter's own time a step at several depths; of the published size, behind four layers."""
    import torch
    from vllm import LLM, SamplingParams
    from vllm.v1.worker.gpu.spec_decode.dspark.speculator import DSparkSpeculator

    from bench.glm_slice import write

    label, window = case.arguments["label"], case.arguments["window"]
    target, drafter = work / f"slice {label}", work / f"drafter {label}"
    write(target, layers=4, experts=16, bf16=True, weights=False)
    glm_52_drafter(drafter, (1, 2, 3), 16_384, window)
    marks: list[tuple[Any, Any]] = []
    propose = DSparkSpeculator.propose

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        found = propose(self, *args, **kwargs)
        end.record()
        marks.append((begin, end))
        return found

    DSparkSpeculator.propose = timed
    engine = LLM(
        str(target), load_format="dummy", max_model_len=66_000, max_num_seqs=4, skip_tokenizer_init=True,
        disable_log_stats=False, gpu_memory_utilization=0.25, kv_cache_memory_bytes=3 << 30,
        max_num_batched_tokens=8192, cudagraph_capture_sizes=[9, 18, 36],
        speculative_config=drafting(work, drafter=drafter.name),
    )  # fmt: skip
    sampling = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, detokenize=False)
    drafts, steps = {}, {}
    for length in (128, 1024, 8192, 65_000):
        ids = [(7 * n) % 16_000 + 2 for n in range(length)]
        with turn(work):
            engine.generate([{"prompt_token_ids": ids}], sampling, use_tqdm=False)  # fills the cache
        with turn(work, alone=True):
            marks.clear()
            engine.generate([{"prompt_token_ids": ids}], sampling, use_tqdm=False)
            torch.cuda.synchronize()
        kept = marks[4:]
        times = sorted(begin.elapsed_time(end) for begin, end in kept)
        between = sorted(a[0].elapsed_time(b[0]) for a, b in itertools.pairwise(kept))
        drafts[length], steps[length] = times[len(times) // 2], between[len(between) // 2]
    core = engine.llm_engine.engine_core.engine_core
    cache = core.scheduler.kv_cache_config
    groups = "; ".join(
        f"{len(group.layer_names)} {type(group.kv_cache_spec).__name__}" for group in cache.kv_cache_groups
    )
    change = drafts[65_000] / drafts[1024] - 1
    note = (
        f"drafter {', '.join(f'{time:.2f}' for time in drafts.values())} ms, step "
        f"{', '.join(f'{time:.2f}' for time in steps.values())} ms at {', '.join(map(str, drafts))} tokens; "
        f"{change:+.0%} from 1,024 on; cache of {cache.num_blocks} blocks, layers {groups}"
    )
    return {"ok": window is None or abs(change) <= 0.05, "note": note}
