"""Pipeline parallelism on the CPU: a worker class that allocates what the skipped profiling run would."""

from __future__ import annotations

from typing import Any

from glmspark.engine import code as look
from glmspark.engine.code import Code
from glmspark.engine.model_config import missing_hook, on_glm_config
from glmspark.engine.patch import Finding, Patch, Target

WORKER_CLASS = "glmspark.engine.cpu_worker.LocalCPUWorker"
UPSTREAM_WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"

_GPU_RUNNER = "vllm.v1.worker.gpu_model_runner"
_CPU_RUNNER = "vllm.v1.worker.cpu_model_runner"
_BUFFER = "intermediate_tensors"


def needed(target: Target) -> str | None:
    """None on the CPU: it alone skips the profiling run."""
    if target.platform == "cpu":
        return None
    return f"on {target.platform} the profiling run allocates the stage's receive buffer"


def precondition(code: Code) -> Finding:
    """The buffer is asserted on, and allocated in `_dummy_run` alone, which an eager CPU start skips."""
    runner = code.find(_GPU_RUNNER, "GPUModelRunner")
    if not look.asserts_not_none(
        code.find(_GPU_RUNNER, "GPUModelRunner.sync_and_gather_intermediate_tensors"), _BUFFER
    ):
        return Finding.no(f"{_GPU_RUNNER} does not assert that {_BUFFER} is there before it receives into it")
    assigned = {
        name for name, values in look.methods_assigning(runner, _BUFFER).items() if values != ["None"]
    }
    on_cpu = set(look.methods_assigning(code.find(_CPU_RUNNER, "CPUModelRunner"), _BUFFER))
    if elsewhere := sorted((assigned | on_cpu) - {"_dummy_run"}):
        return Finding.superseded(f"{_BUFFER} is allocated in {', '.join(elsewhere)}")
    if not assigned:
        return Finding.no(f"nothing in {_GPU_RUNNER} allocates {_BUFFER}: the name has changed")
    if not look.returns_if(code.find(_CPU_RUNNER, "CPUModelRunner.warming_up_model"), "CompilationMode"):
        return Finding.superseded(f"{_CPU_RUNNER} warms up in every compilation mode")
    load = look.parameters(code.find("vllm.v1.worker.gpu_worker", "Worker.load_model"))
    if load != ["self", "load_dummy_weights"]:
        return Finding.no(f"Worker.load_model takes ({', '.join(load)}), not (self, *, load_dummy_weights)")
    if f'"{UPSTREAM_WORKER}"' not in code.source("vllm.platforms.cpu"):
        return Finding.no(f"vllm.platforms.cpu does not choose {UPSTREAM_WORKER} any more")
    if missing := missing_hook(code):
        return Finding.no(missing)
    return Finding.yes(f"{_BUFFER} is allocated in the profiling run only, which the CPU skips")


def choose_worker(vllm_config: Any) -> None:
    """Name our worker class where none was named: the flag --worker-cls stays the user's."""
    parallel = vllm_config.parallel_config
    if parallel.worker_cls == "auto":
        parallel.worker_cls = WORKER_CLASS


def choose_worker_for_stages(vllm_config: Any) -> None:
    """Name our worker class where there is more than one pipeline stage."""
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        choose_worker(vllm_config)


def apply() -> None:
    """Register the rule."""
    on_glm_config(choose_worker_for_stages)


PATCH = Patch(
    name="cpu-pipeline",
    title="Pipeline parallelism on the CPU",
    upstream=(
        "a stage's receive buffer is allocated in the profiling run; the CPU model runner skips that run "
        "when nothing is compiled, and the first request fails with an assertion."
    ),
    reason="the PP recipes must run on one machine without a GPU, for people who try them and for the tests",
    link="https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/v1/worker/cpu_model_runner.py",
    versions=">=0.32,<0.34",
    needed=needed,
    precondition=precondition,
    apply=apply,
)
