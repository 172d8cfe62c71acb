"""Shared memory between ranks only where they have the same."""

from __future__ import annotations

import torch.distributed
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

from glmspark.engine.ray.place import shared_memory_identity


class NetworkCpuCommunicator(CpuCommunicator):
    """vLLM's CPU communicator, which takes ranks with one group name for ranks of one machine."""

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        """Whether all ranks of the group see one and the same /dev/shm, besides agreeing on the name."""
        places: list[str] = [""] * self.world_size
        torch.distributed.all_gather_object(places, shared_memory_identity(), group=self.device_group)
        return len(set(places)) == 1 and super()._all_group_ranks_share_shm_group_name()
