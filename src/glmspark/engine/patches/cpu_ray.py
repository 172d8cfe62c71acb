"""Ray on the CPU: a platform that Ray can place workers on, and no shared memory between machines."""

from __future__ import annotations

import ast
import os

from glmspark.engine import code as look
from glmspark.engine.code import Code
from glmspark.engine.model_config import missing_hook, on_glm_config
from glmspark.engine.patch import Finding, Patch, PatchRefusedError, Target
from glmspark.engine.patches.cpu_pipeline import choose_worker
from glmspark.engine.ray.commands import SWITCH

_PLATFORM = "vllm.platforms.cpu"
_INTERFACE = "vllm.platforms.interface"
_COMMUNICATOR = "vllm.distributed.device_communicators.cpu_communicator"
_GROUPS = "CpuCommunicator._all_group_ranks_share_shm_group_name"


def needed(target: Target) -> str | None:
    """None below a ray node on the CPU."""
    if target.platform != "cpu":
        return f"Ray knows {target.platform} devices by itself"
    if os.environ.get(SWITCH) != "1":
        return f"this process is not part of a Ray cluster of ours ({SWITCH})"
    return None


def precondition(code: Code) -> Finding:
    """The platform has no device for Ray, and the communicator compares names alone."""
    if '"vllm.platform_plugins"' not in code.source("vllm.plugins"):
        return Finding.no("vllm.plugins does not look for vllm.platform_plugins any more")
    if 'ray_device_key: str = ""' not in code.source(_INTERFACE):
        return Finding.no(f"{_INTERFACE}.Platform has no empty ray_device_key")
    if "ray_device_key" in ast.unparse(code.find(_PLATFORM, "CpuPlatform")):
        return Finding.superseded(f"{_PLATFORM}.CpuPlatform is known to Ray")
    code.find(_PLATFORM, "CpuPlatform.get_device_communicator_cls")
    groups = code.find(_COMMUNICATOR, _GROUPS)
    if (seen := look.parameters(groups)) != ["self"]:
        return Finding.no(f"{_COMMUNICATOR}.{_GROUPS} takes ({', '.join(seen)}), not (self)")
    if "make_group_name" not in ast.unparse(groups):
        return Finding.no(f"{_COMMUNICATOR}.{_GROUPS} does not compare group names any more")
    if f"self.{_GROUPS.rpartition('.')[2]}()" not in ast.unparse(
        code.find(_COMMUNICATOR, "CpuCommunicator.__init__")
    ):
        return Finding.no(f"{_COMMUNICATOR} uses shared memory without asking {_GROUPS}")
    if missing := missing_hook(code):
        return Finding.no(missing)
    return Finding.yes("the CPU platform has no device for Ray, and its communicator compares names alone")


def apply() -> None:
    """Check that vLLM took our platform (it asks for it before any patch), and choose the worker for Ray.

    Raises `PatchRefusedError` where it took another.
    """
    from vllm.platforms import current_platform

    if not current_platform.ray_device_key:
        raise PatchRefusedError(
            f"vLLM took the platform {type(current_platform).__name__}, which Ray does not know. "
            f"VLLM_TARGET_DEVICE=cpu makes it do so; a VLLM_PLUGINS without glmspark does, too: unset them."
        )
    on_glm_config(choose_worker)


PATCH = Patch(
    name="cpu-ray",
    title="Ray on the CPU",
    upstream=(
        "CpuPlatform names no device for Ray, so the Ray executor refuses it; and the CPU communicator takes "
        "ranks whose group has one name for ranks of one machine. Ray gives all ranks the same port, from "
        "which the name is made, and the first group fails with `open shm in SHMManager failed`."
    ),
    reason="the recipes that use Ray must run without a GPU, for people who try them and for the tests",
    link="https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/platforms/cpu.py",
    versions=">=0.32,<0.34",
    needed=needed,
    precondition=precondition,
    apply=apply,
)
