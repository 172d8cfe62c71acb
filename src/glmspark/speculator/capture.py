"""Hidden states of a target and the tokens they belong to: it answers prompts, then reads its answers.

The engine is vLLM as a deployment runs it, with the checkpoint's quantisation and our patches, but without
CUDA graphs. First it answers; then each prompt with its answer is computed once more as one prompt, and hooks
keep the states (capture_worker.py). So whole sequences come out, whatever the batches were, and the answers
are those that a deployment gives.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmspark.speculator.dataset import Sequence, Writer
from glmspark.speculator.prompts import Prompt
from glmspark.speculator.shape import DrafterError
from glmspark.speculator.stitching import rows_of

__all__ = ["Capture", "default_layers", "run"]

CHUNK = 65_536
"""Tokens whose states are kept in memory before they go into a shard."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Capture:
    """What to capture. target: the checkpoint's directory. most_bytes: the data set ends there. engine:
    further arguments of vLLM's LLM."""

    target: Path
    out: Path
    aux_layers: tuple[int, ...]
    max_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0
    most_bytes: int = 8 << 30
    engine: dict[str, Any] = field(default_factory=dict)
    dense: bool = False


def default_layers(layers: int, wanted: int = 5) -> tuple[int, ...]:
    """Which states a drafter reads where nobody says: spread evenly over a target of so many layers.

    From about a tenth to nine tenths of its depth, as published drafters for GLM-5.2 do (8, 23, 39, 55 and 70
    of 78); small targets give all their inner states.
    """
    if layers - 1 <= wanted:
        return tuple(range(1, layers))
    first, last = max(1, round(layers * 0.1)), round(layers * 0.9)
    return tuple(sorted({round(first + k * (last - first) / (wanted - 1)) for k in range(wanted)}))


def run(job: Capture, prompts: list[Prompt], progress: Progress = lambda *_: None) -> dict[str, Any]:
    """Capture; returns {sequences, tokens, bytes, seconds, whole}. whole is False where most_bytes ended it.

    Raises DrafterError for a target that does not fit the request; vLLM's own errors pass.
    """
    if job.dense:
        os.environ["GLMSPARK_DENSE_ATTENTION"] = "1"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    from vllm import LLM, __version__

    arguments: dict[str, Any] = {"max_model_len": 2048, "max_num_seqs": 64} | job.engine
    room = max(arguments.get("max_num_batched_tokens", 0), arguments["max_model_len"], 8192)
    engine = LLM(
        str(job.target),
        **arguments
        | {
            "enforce_eager": True,
            "enable_prefix_caching": False,  # every token's states are wanted
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": room,
            "worker_extension_cls": "glmspark.speculator.capture_worker.CapturesStates",
            "seed": job.seed,
        },
    )
    try:
        return _capture(job, prompts, engine, _provenance(job, prompts, __version__, arguments), progress)
    finally:
        engine.llm_engine.engine_core.shutdown()


def _capture(
    job: Capture, prompts: list[Prompt], engine: Any, provenance: dict[str, Any], progress: Progress
) -> dict[str, Any]:
    from vllm import SamplingParams

    start = time.monotonic()
    tokenizer = engine.get_tokenizer()
    most = int(engine.model_config.max_model_len)
    asked = [_encode(tokenizer, prompt) for prompt in prompts]
    kept = [n for n, ids in enumerate(asked) if len(ids) + 1 < most]
    sampling = SamplingParams(temperature=job.temperature, max_tokens=job.max_tokens, seed=job.seed)
    once = SamplingParams(temperature=0, max_tokens=1, detokenize=False)
    writer = Writer(job.out, list(job.aux_layers), provenance)
    total = {"sequences": 0, "tokens": 0, "bytes": 0}
    for chunk in _chunks(kept, asked, job.max_tokens):
        outputs = engine.generate([{"prompt_token_ids": asked[n]} for n in chunk], sampling, use_tqdm=False)
        whole = [
            ([*asked[n], *output.outputs[0].token_ids][: most - 1], len(asked[n]), prompts[n].kind)
            for n, output in zip(chunk, outputs, strict=True)
        ]
        with tempfile.TemporaryDirectory(prefix="glmspark-states-") as folder:
            path = Path(folder) / "states"
            engine.collective_rpc("glmspark_capture", args=(list(job.aux_layers),))
            engine.generate([{"prompt_token_ids": ids} for ids, _, _ in whole], once, use_tqdm=False)
            engine.collective_rpc("glmspark_captured", args=(str(path),))
            sequences = list(_read(path, whole))
        total["bytes"] += writer.add(sequences)
        total["sequences"] += len(sequences)
        total["tokens"] += sum(len(s.tokens) for s in sequences)
        progress("captured", total["sequences"], len(kept))
        if total["bytes"] >= job.most_bytes:
            break
    return total | {
        "seconds": round(time.monotonic() - start, 1),
        "whole": total["sequences"] >= len(kept),
        "left_out": len(prompts) - len(kept),
    }


def _encode(tokenizer: Any, prompt: Prompt) -> list[int]:
    found = tokenizer.apply_chat_template(
        prompt.messages,
        tools=prompt.tools,
        tokenize=True,
        add_generation_prompt=True,
        return_dict=False,
        **prompt.template,
    )
    return [int(token) for token in found]


def _chunks(kept: list[int], asked: list[list[int]], answer: int) -> Iterator[list[int]]:
    """Numbers of prompts, as many at a time as `CHUNK` tokens allow if answers are as long as may be."""
    chunk: list[int] = []
    tokens = 0
    for number in kept:
        more = len(asked[number]) + answer
        if chunk and tokens + more > CHUNK:
            yield chunk
            chunk, tokens = [], 0
        chunk.append(number)
        tokens += more
    if chunk:
        yield chunk


def _read(path: Path, whole: list[tuple[list[int], int, str]]) -> Iterator[Sequence]:
    from safetensors.torch import load_file

    found = load_file(path)
    places = rows_of(found["tokens"], found["positions"], [ids for ids, _, _ in whole])
    for rows, (ids, prompt, kind) in zip(places, whole, strict=True):
        if rows is None:
            raise DrafterError(
                f"the states of a sequence of {len(ids)} tokens were not seen in one piece",
                step="capture the target's states",
                next="leave out engine arguments that cut prompts into chunks, cache prefixes or pad batches",
            )
        yield Sequence(found["tokens"][rows], found["states"][rows], found["last"][rows], prompt, kind)


def _provenance(
    job: Capture, prompts: list[Prompt], version: str, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Where the data are from, for whoever trains with them."""
    import torch

    from glmspark import __version__ as own
    from glmspark.speculator.store import digest

    said = "\n".join(repr((p.messages, p.tools, p.template)) for p in prompts)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {
        "target": str(job.target.resolve()),
        "target_sha256": digest(job.target),
        "prompts": len(prompts),
        "prompts_sha256": hashlib.sha256(said.encode()).hexdigest(),
        "answers": {"temperature": job.temperature, "max_tokens": job.max_tokens, "seed": job.seed},
        "engine": {"vllm": version, "glmspark": own, "torch": str(torch.__version__), "device": device},
        "arguments": {key: str(value) for key, value in arguments.items()},
        "dense": job.dense,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
