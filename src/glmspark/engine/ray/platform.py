"""vLLM's CPU platform, known to Ray. See patches/cpu_ray.py for the why."""

from __future__ import annotations

from vllm.platforms.cpu import CpuPlatform


class RayCpuPlatform(CpuPlatform):
    """The CPU platform with one device a node for Ray to give out."""

    # Ray reports to a worker only devices of kinds it knows. A ray node declares one "GPU", a mere token.
    ray_device_key = "GPU"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """A communicator that asks where the ranks are before it uses shared memory."""
        return "glmspark.engine.ray.communicator.NetworkCpuCommunicator"
