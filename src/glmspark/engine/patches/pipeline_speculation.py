"""Speculation with pipeline stages on the V1 runner: one batch in flight, a drafter attribute everywhere."""

from __future__ import annotations

import ast
import functools
from typing import Any

from glmspark.engine import code as look
from glmspark.engine.code import Code
from glmspark.engine.patch import Finding, Patch, Target

_CONFIG = "vllm.config.vllm"
_BATCHES = "VllmConfig.max_concurrent_batches"
_RUNNER = "vllm.v1.worker.gpu_model_runner"
_UPDATE = "GPUModelRunner._update_states"
_WORKER = "vllm.v1.worker.gpu_worker"


def needed(_target: Target) -> str | None:
    """None: the CPU always has the V1 runner, CUDA has it for suffix decoding and drafters of one's own."""
    return None


def precondition(code: Code) -> Finding:
    """A batch per stage is in flight whether or not tokens are drafted, and the first stage reads the last of
    a list that is empty then."""
    batches = ast.unparse(code.find(_CONFIG, _BATCHES))
    if "pipeline_parallel_size" not in batches:
        return Finding.no(f"{_CONFIG}.{_BATCHES} does not go by the number of stages any more")
    if "speculative_config" in batches:
        return Finding.superseded(f"{_CONFIG}.{_BATCHES} asks whether tokens are drafted")
    if "vllm_config.max_concurrent_batches" not in ast.unparse(
        code.find("vllm.v1.engine.core", "EngineCore.__init__")
    ):
        return Finding.no(f"the engine core does not take its number of batches from {_BATCHES} any more")
    if "new_token_ids[-1]" not in ast.unparse(code.find(_RUNNER, _UPDATE)):
        return Finding.no(f"{_RUNNER}.{_UPDATE} does not read the last of new_token_ids any more")
    if "is_last_rank" not in ast.unparse(code.find(_RUNNER, "GPUModelRunner.__init__")):
        return Finding.no(f"{_RUNNER} makes its drafter elsewhere than on the last stage")
    load = look.parameters(code.find(_WORKER, "Worker.load_model"))
    if load != ["self", "load_dummy_weights"]:
        return Finding.no(f"{_WORKER}.Worker.load_model takes ({', '.join(load)})")
    return Finding.yes(
        "a batch per stage is in flight, and the first stage does not know what was drafted in it"
    )


def apply() -> None:
    """Wrap the property and the worker's loading."""
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu_worker import Worker

    batches = VllmConfig.max_concurrent_batches.fget
    load_model = Worker.load_model

    def max_concurrent_batches(self: Any) -> int:
        # A request whose drafts are being verified in one batch would be scheduled into the next with no
        # token to go on from. One batch at a time costs nothing where one request is answered at a time.
        if (
            self.parallel_config.pipeline_parallel_size > 1
            and self.speculative_config is not None
            and not self.use_v2_model_runner
        ):
            return 1
        return int(batches(self))

    @functools.wraps(load_model)
    def load(self: Any, *, load_dummy_weights: bool = False) -> None:
        load_model(self, load_dummy_weights=load_dummy_weights)
        if not self.use_v2_model_runner and not hasattr(self.model_runner, "drafter"):
            self.model_runner.drafter = None

    VllmConfig.max_concurrent_batches = property(max_concurrent_batches)
    Worker.load_model = load


PATCH = Patch(
    name="pipeline-speculation",
    title="N-gram and suffix speculation with pipeline stages",
    upstream=(
        "the V1 runner keeps a batch per stage in flight. A request is scheduled again while its drafts are "
        "being verified, with an empty list of new tokens, and the first stage ends with IndexError in "
        "_update_states. And `drafter`, set on the last stage, is read on all."
    ),
    reason="n-gram and suffix drafts need no weights and no memory: what a pipeline recipe can use",
    link="https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/v1/worker/gpu_model_runner.py",
    versions=">=0.32,<0.34",
    needed=needed,
    precondition=precondition,
    apply=apply,
)
