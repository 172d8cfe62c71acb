"""A rank's processes on the CPU are forked: vLLM is imported once per rank."""

from __future__ import annotations

import ast
import os
from typing import Any

from glmspark.engine import code as look
from glmspark.engine.code import Code
from glmspark.engine.model_config import missing_hook, on_glm_config
from glmspark.engine.patch import Finding, Patch, Target
from glmspark.engine.patches.cpu_pipeline import choose_worker
from glmspark.engine.start_method import VARIABLE, forks

METHOD = "VLLM_WORKER_MULTIPROC_METHOD"

_PLATFORM = "vllm.platforms.cpu"
_CHECK = "CpuPlatform.check_and_update_config"


def needed(target: Target) -> str | None:
    """None in a CPU rank that was prepared for it."""
    if target.platform != "cpu":
        return f"on {target.platform} vLLM forks by itself"
    return None if forks() else f"this process is no rank that was prepared to fork ({VARIABLE})"


def precondition(code: Code) -> Finding:
    """The platform forces the method to spawn in a hook that can be wrapped, and vLLM reads it from there."""
    check = code.find(_PLATFORM, _CHECK)
    if (seen := look.parameters(check)) != ["cls", "vllm_config"]:
        return Finding.no(f"{_CHECK} takes ({', '.join(seen)}), not (cls, vllm_config)")
    forced = f"os.environ['{METHOD}'] = 'spawn'"
    if not any(isinstance(item, ast.Assign) and ast.unparse(item) == forced for item in ast.walk(check)):
        return Finding.superseded(f"{_PLATFORM} does not force processes to spawn any more")
    context = code.find("vllm.utils.system_utils", "get_mp_context")
    if f"envs.{METHOD}" not in ast.unparse(context):
        return Finding.no(f"get_mp_context does not read {METHOD} any more")
    code.find("vllm.utils.ompmultiprocessing", "OMPProcessManager._parse_omp_threads_bind_env")
    if missing := missing_hook(code):
        return Finding.no(missing)
    return Finding.yes(f"{_CHECK} sets {METHOD}=spawn, and this rank is prepared to fork")


def apply() -> None:
    """Wrap the platform's hook, and choose the worker that binds its own cores."""
    from vllm.platforms.cpu import CpuPlatform

    upstream = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: type[Any], vllm_config: Any) -> None:
        upstream(cls, vllm_config)
        os.environ[METHOD] = "fork"

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
    on_glm_config(choose_worker)


PATCH = Patch(
    name="cpu-fork",
    title="A CPU rank imports vLLM once",
    upstream=(
        "CpuPlatform.check_and_update_config sets VLLM_WORKER_MULTIPROC_METHOD to spawn, so that each of a "
        "rank's processes imports vLLM anew: 7-9 seconds of a core each."
    ),
    reason="two ranks on two cores start in about half the time, with half the memory",
    link="https://github.com/vllm-project/vllm/pull/36487",
    versions=">=0.32,<0.34",
    needed=needed,
    precondition=precondition,
    apply=apply,
)
