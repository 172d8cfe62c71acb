"""vLLM's CPU worker, made fit for pipeline parallelism and for a start by fork. Imported in workers only."""

from __future__ import annotations

import os
from typing import Any

import torch
from vllm import envs
from vllm.distributed import get_pp_group
from vllm.utils.cpu_resource_utils import parse_id_list
from vllm.utils.ompmultiprocessing import OMPProcessManager
from vllm.v1.worker.cpu_worker import CPUWorker

from glmspark.engine.ray.commands import SWITCH
from glmspark.engine.start_method import forks


class LocalCPUWorker(CPUWorker):
    """Does what a GPU start, the last pipeline stage, or a spawned process would have done elsewhere.

    - The cores: a spawned worker finds them in OpenMP's variables when it loads the library; a forked one has
      the library already, so it is bound here, before the first parallel region.
    - `intermediate_tensors`: the buffer a later stage receives hidden states into. Upstream allocates it in
      the profiling run, which the CPU skips when nothing is compiled.
    """

    def __init__(self, vllm_config: Any, local_rank: int, *args: Any, **kwargs: Any) -> None:
        if forks():
            bind(cpu_lists(vllm_config), local_rank)
        super().__init__(vllm_config, local_rank, *args, **kwargs)

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """Load as upstream does, then set what is missing."""
        super().load_model(load_dummy_weights=load_dummy_weights)
        runner = self.model_runner
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens,
                dtype=runner.model_config.dtype,
                device=runner.device,
            )


def cpu_lists(vllm_config: Any) -> list[list[int]]:
    """The cores of each rank on this node, as VLLM_CPU_OMP_THREADS_BIND has them; empty where binding is off.

    Under Ray vLLM counts the ranks of all nodes as local ones and refuses a node's own list: it is read here.
    """
    if os.environ.get(SWITCH) != "1":
        return OMPProcessManager(vllm_config).cpu_lists
    named = envs.VLLM_CPU_OMP_THREADS_BIND
    if named == "auto":
        return [sorted(os.sched_getaffinity(0))]
    return [] if named == "nobind" else [parse_id_list(part) for part in named.split("|")]


def bind(cpu_lists: list[list[int]], local_rank: int) -> None:
    """Give this process its cores and as many threads; nothing where binding is off (no lists)."""
    if cpu_lists:
        os.sched_setaffinity(0, cpu_lists[local_rank])
        torch.set_num_threads(len(cpu_lists[local_rank]))
