"""What tests/gpu/engine_cuda.py runs on CUDA: each case is an engine, or a part of it, and gives a row."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "src/glmspark/recipes/checkpoints/glm-tiny"
DENSE = {"GLMSPARK_DENSE_ATTENTION": "1"}
SHARED = {"gpu_memory_utilization": 0.15}  # vLLM asks for that much to be free, and cases share a GPU


@dataclass(frozen=True)
class Case:
    """function(case, folder) gives a row: `ok`, `note`, and `tokens` where it generates. same_as: the case
    whose tokens must be these. env is set before anything is imported."""

    function: Callable[[Case, Path], dict[str, Any]]
    env: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    variant: str = ""
    right: int = 0
    same_as: str = ""
    gpus: int = 1


# --- what a case does ---------------------------------------------------------------------------------------


def made(name: str, folder: Path) -> Path:
    """A variant of glm-tiny, made here; or glm-tiny itself."""
    if not name:
        return CHECKPOINT
    # A process of its own: once CUDA is awake in this one, vLLM's engine cannot fork from it.
    target = folder / name
    code = (
        "import sys; from pathlib import Path; from tools.glm_tiny.variants import make; "
        "make(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))"
    )
    subprocess.run([sys.executable, "-c", code, name, str(CHECKPOINT), str(target)], check=True)
    return target


def prompts(tokenizer: Any) -> tuple[list[Any], list[list[int]]]:
    """The fixed prompts, and their token ids."""
    from tools.glm_tiny.prompts import FIXED_PROMPTS

    ids = [
        tokenizer.apply_chat_template(
            prompt.messages,
            tools=prompt.declared,
            tokenize=True,
            add_generation_prompt=True,
            return_dict=False,
            **prompt.template,
        )
        for prompt in FIXED_PROMPTS
    ]
    return list(FIXED_PROMPTS), ids


def answers(case: Case, folder: Path) -> dict[str, Any]:
    """The fixed prompts of glm-tiny, answered; how many as trained."""
    from vllm import LLM, SamplingParams

    from tools.glm_tiny.conversation import call_text

    arguments = {"max_model_len": 2048, "dtype": "bfloat16", "max_num_seqs": 32, **SHARED, **case.arguments}
    engine = LLM(str(made(case.variant, folder)), kv_cache_memory_bytes=1 << 30, **arguments)
    tokenizer = engine.get_tokenizer()
    asked, ids = prompts(tokenizer)
    stop = list(tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|user|>", "<|observation|>"]))
    outputs = engine.generate(
        [{"prompt_token_ids": i} for i in ids],
        [SamplingParams(temperature=0, max_tokens=p.max_tokens, stop_token_ids=stop) for p in asked],
        use_tqdm=False,
    )
    right = 0
    for prompt, output in zip(asked, outputs, strict=True):
        text = output.outputs[0].text
        said = text.partition("</think>")[2] if prompt.thinking else text
        right += said == (call_text(*prompt.call) if prompt.call else prompt.expect)
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    note = f"{right} of {len(asked)} right"
    if "speculative_config" in arguments:
        counts = {
            m.name.rpartition("_num_")[2]: m.value
            for m in engine.get_metrics()
            if "spec_decode_num" in m.name and hasattr(m, "value")  # one of them counts by place
        }
        note += (
            f"; drafted {counts.get('draft_tokens', 0):.0f}, accepted {counts.get('accepted_tokens', 0):.0f}"
        )
    return {"ok": right >= case.right, "note": note, "tokens": tokens}


def glm_slice(case: Case, folder: Path) -> dict[str, Any]:
    """Layers of GLM-5.2's dimensions with made-up weights: they run, and give numbers."""
    from vllm import LLM, SamplingParams

    from bench.glm_slice import write

    # Of a checkpoint whose weights are made up anyway, config.json is enough.
    dummy = case.arguments.get("load_format") == "dummy"
    target = folder / "slice"
    experts = 192 if not dummy else 256
    size = write(target, layers=2, experts=experts, bf16=dummy, weights=not dummy)
    start = time.time()
    arguments = {"max_model_len": 4096, "max_num_seqs": 8, "skip_tokenizer_init": True, **SHARED}
    arguments |= case.arguments
    engine = LLM(str(target), kv_cache_memory_bytes=1 << 30, **arguments)
    loaded = time.time() - start
    asked = [{"prompt_token_ids": [(7 * n + k) % 16000 + 2 for n in range(900)]} for k in range(4)]
    sampling = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True, logprobs=1, detokenize=False)
    outputs = engine.generate(asked, sampling, use_tqdm=False)
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    finite = all(
        value.logprob == value.logprob and value.logprob > -1e4
        for output in outputs
        for place in output.outputs[0].logprobs
        for value in place.values()
    )
    whole = all(len(found) == 64 for found in tokens)
    note = f"{size / 1e9:.1f} GB, start {loaded:.0f} s, logprobs {'finite' if finite else 'NOT FINITE'}"
    return {"ok": finite and whole, "note": note, "tokens": tokens}


def loader(case: Case, folder: Path) -> dict[str, Any]:
    """5.3 GB of GLM-5.2-shaped tensors to GPU memory: rate, host memory, page cache, and every byte right."""
    import torch
    from safetensors import safe_open

    from bench.glm_slice import write
    from bench.loader import CacheWatch, put_out, shards, status
    from glmspark.engine.loader.spark import read_tensors, settings_of
    from glmspark.engine.shards import read_header

    target = folder / "slice"
    write(target)
    torch.zeros(1, device="cuda")
    put_out(target)
    watch = CacheWatch(target)
    watch.start()
    wanted = [stored for file in shards(target) for stored in read_header(file)]
    Path("/proc/self/clear_refs").write_text("5")
    before, start, total, sums = status("VmRSS"), time.time(), 0, {}
    for stored, tensor in read_tensors(wanted, torch.device("cuda"), settings_of(case.arguments)):
        sums[stored.name] = tensor.view(torch.uint8).sum(dtype=torch.int64)
        total += stored.nbytes
        del tensor
    torch.cuda.synchronize()
    seconds, memory = time.time() - start, status("VmHWM") - before
    most, left = watch.finish()
    wrong = 0
    for file in shards(target):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a dict
                wanted_sum = opened.get_tensor(name).view(torch.uint8).sum(dtype=torch.int64)
                wrong += int(sums[name].cpu() != wanted_sum)
    note = (
        f"{total / 1e9:.1f} GB in {seconds:.1f} s, {total / seconds / 1e9:.2f} GB/s; page cache at most "
        f"{most >> 20} MiB, {left >> 20} left; host memory {memory >> 20} MiB; {wrong} tensors wrong"
    )
    return {"ok": wrong == 0 and left == 0 and most <= 64 << 20 and memory <= 512 << 20, "note": note}


def decode(_case: Case, _folder: Path) -> dict[str, Any]:
    """vLLM's MLA decode kernel with fp8 keys: as upstream launches it, and as fitted to 99 KiB."""
    import torch
    from vllm.v1.attention.ops import triton_decode_attention as ops

    from glmspark.engine.patches.mla_decode import KERNEL, FittedKernel

    torch.manual_seed(0)
    batch, heads, pages, page, splits = 4, 64, 64, 64, 8
    query = torch.randn(batch, heads, 576, device="cuda", dtype=torch.bfloat16)
    keys = (torch.randn(pages * batch, page, 1, 576, device="cuda") * 0.5).to(torch.float8_e4m3fn)
    table = torch.arange(pages * batch, device="cuda", dtype=torch.int32).view(batch, pages)
    lengths = torch.tensor([4096, 1000, 77, 1], device="cuda", dtype=torch.int32)
    one = torch.ones((), device="cuda")

    def attend() -> torch.Tensor:
        out = torch.empty(batch, heads, 512, device="cuda", dtype=torch.bfloat16)
        lse = torch.empty(batch, heads, device="cuda", dtype=torch.bfloat16)
        scratch = torch.empty(batch, heads, splits, 513, device="cuda")
        ops.decode_attention_fwd(
            query, keys, keys[..., :512], out, lse, table, lengths, scratch, splits, 0.0417, page,
            k_scale=one, v_scale=one, is_mla=True,
        )  # fmt: skip
        return out.float()

    upstream = attend()
    fitted = FittedKernel(getattr(ops, KERNEL), 101_376)
    setattr(ops, KERNEL, fitted)
    found = attend()
    error = float((found - upstream).norm() / upstream.norm())
    return {"ok": error < 0.01, "note": f"(BLOCK_N, stages) {fitted.choice}: off by {error:.1e}"}


def two_ranks(case: Case, folder: Path) -> dict[str, Any]:
    """A rank a GPU, two over NCCL's sockets on loopback; started as a launch starts ranks."""
    from transformers import AutoTokenizer

    from tests.engine.ranks import Layout, Ranks

    backend, layout = case.arguments["backend"], Layout(case.gpus, 1)
    flags = {"dtype": "bfloat16", "kv-cache-memory-bytes": str(1 << 30)}
    (folder / "logs").mkdir()
    if backend == "mp":
        ranks = Ranks(CHECKPOINT, layout, folder / "logs", flags, dict(case.env))
    elif backend == "lockstep":
        from tests.engine.lockstep_ranks import LockstepRanks

        ranks = LockstepRanks(CHECKPOINT, layout, folder / "logs", flags, dict(case.env))
    else:
        from tests.engine.ray_nodes import RayNodes

        ranks = RayNodes(CHECKPOINT, layout, folder / "logs", flags, dict(case.env), scratch=folder)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    command = ranks.command
    # Each rank sees its own GPU only, as on nodes with one each.
    ranks.command = lambda rank: ["env", f"CUDA_VISIBLE_DEVICES={visible[rank]}", *command(rank)]  # type: ignore[method-assign]
    asked, ids = prompts(AutoTokenizer.from_pretrained(CHECKPOINT))
    with ranks:
        tokens = ranks.complete([(i, p.max_tokens) for i, p in zip(ids, asked, strict=True)])
        log = "".join(ranks.log(rank) for rank in range(case.gpus))
    sockets = "NET/Socket" in log or case.gpus == 1
    return {"ok": sockets, "note": "over sockets" if sockets else "NOT over sockets", "tokens": tokens}


EAGER, GRAPHS = {"enforce_eager": True}, {"enforce_eager": False}
# Ours, or the engine does not start: nobody else answers to that name.
OWN = {**GRAPHS, "attention_backend": "CUSTOM"}
SOCKETS = {
    **DENSE, "NCCL_SOCKET_IFNAME": "lo", "NCCL_NET": "Socket", "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1", "NCCL_DEBUG": "INFO", "NCCL_IB_DISABLE": "1",
}  # fmt: skip

CASES: dict[str, Case] = {
    "loader to the GPU": Case(loader),
    "slice dense, NVFP4 by Marlin, spark": Case(
        glm_slice, DENSE, {**EAGER, "load_format": "spark", "moe_backend": "marlin"}
    ),
    "slice dense, dummy": Case(glm_slice, DENSE, {**GRAPHS, "load_format": "dummy"}),
    "slice sparse, dummy": Case(glm_slice, {}, {**GRAPHS, "load_format": "dummy"}),
    "dense, eager": Case(answers, DENSE, EAGER, right=20),
    "dense, graphs, spark": Case(
        answers, DENSE, {**GRAPHS, "load_format": "spark"}, right=20, same_as="dense, eager"
    ),
    "sparse, eager": Case(answers, {}, EAGER, right=20),
    "sparse, graphs, spark": Case(
        answers, {}, {**GRAPHS, "load_format": "spark"}, right=20, same_as="sparse, eager"
    ),
    "NVFP4 by Marlin, dense": Case(answers, DENSE, {**EAGER, "moe_backend": "marlin"}, "glm-tiny-nvfp4", 18),
    "NVFP4 ModelOpt by Marlin, sparse": Case(
        answers, {}, {**GRAPHS, "moe_backend": "marlin"}, "glm-tiny-nvfp4-modelopt-w4a16", 18
    ),
    "Int4-Int8Mix, dense": Case(answers, DENSE, EAGER, "glm-tiny-int4-int8mix", 18),
    "REAP, original numbers": Case(answers, DENSE, EAGER, "glm-tiny-reap-whole-router", 15),
    "REAP, renumbered": Case(
        answers, DENSE, EAGER, "glm-tiny-reap-renumbered", 15, same_as="REAP, original numbers"
    ),
    "MLA decode fitted to 99 KiB": Case(decode),
    "dense, MTP, spark": Case(
        answers,
        DENSE,
        {
            **GRAPHS,
            "load_format": "spark",
            "disable_log_stats": False,
            "speculative_config": {"method": "mtp", "num_speculative_tokens": 1},
        },
        right=20,
        same_as="dense, eager",
    ),
    "dense, n-gram": Case(
        answers,
        DENSE,
        {
            **GRAPHS,
            "disable_log_stats": False,
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
        },
        right=20,
        same_as="dense, eager",
    ),
    "dense, own decode kernel": Case(answers, DENSE, OWN, right=20, same_as="dense, eager"),
    "dense, own decode kernel, fp8": Case(answers, DENSE, {**OWN, "kv_cache_dtype": "fp8"}, right=18),
    "dense, own decode kernel, MTP": Case(
        answers,
        DENSE,
        {
            **OWN,
            "disable_log_stats": False,
            "speculative_config": {"method": "mtp", "num_speculative_tokens": 1},
        },
        right=20,
        same_as="dense, eager",
    ),
    "dense, own decode kernel, n-gram": Case(
        answers,
        DENSE,
        {
            **OWN,
            "disable_log_stats": False,
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
        },
        right=20,
        same_as="dense, eager",
    ),
    "sparse, own decode kernel": Case(answers, {}, OWN, right=20, same_as="sparse, eager"),
    "sparse, own decode kernel, fp8_ds_mla": Case(
        answers, {}, {**OWN, "kv_cache_dtype": "fp8_ds_mla"}, right=18
    ),
    "one rank in lockstep": Case(two_ranks, DENSE, {"backend": "lockstep"}, same_as="dense, eager"),
    "TP2 by mp over sockets": Case(two_ranks, SOCKETS, {"backend": "mp"}, same_as="dense, eager", gpus=2),
    "TP2 in lockstep over sockets": Case(
        two_ranks, SOCKETS, {"backend": "lockstep"}, same_as="dense, eager", gpus=2
    ),
    "TP2 by Ray over sockets": Case(two_ranks, SOCKETS, {"backend": "ray"}, same_as="dense, eager", gpus=2),
}
