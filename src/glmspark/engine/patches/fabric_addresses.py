"""Every worker's addresses against the plan, before it forms a group."""

from __future__ import annotations

import ast
import functools
from typing import Any

from glmspark.engine import code as look
from glmspark.engine.addresses import Rank, check
from glmspark.engine.code import Code
from glmspark.engine.fabric import Fabric
from glmspark.engine.patch import Finding, Patch, Target

_WRAPPER = "vllm.v1.worker.worker_base"
_INIT_DEVICE = "WorkerWrapperBase.init_device"
_EXECUTOR = "vllm.v1.executor.multiproc_executor"


def needed(_target: Target) -> str | None:
    """None: on every platform a worker with a wrong address waits for ever."""
    return None


def precondition(code: Code) -> Finding:
    """All executors initialise a worker through its wrapper, which knows its rank and forms groups then."""
    init_device = code.find(_WRAPPER, _INIT_DEVICE)
    if (seen := look.parameters(init_device)) != ["self"]:
        return Finding.no(f"{_WRAPPER}.{_INIT_DEVICE} takes ({', '.join(seen)}), not (self)")
    if "self.worker.init_device()" not in ast.unparse(init_device):
        return Finding.no(f"{_WRAPPER}.{_INIT_DEVICE} does not initialise the worker")
    if "self.global_rank" not in ast.unparse(code.find(_WRAPPER, "WorkerWrapperBase.__init__")):
        return Finding.no(f"{_WRAPPER}.WorkerWrapperBase does not know its rank any more")
    worker = ast.unparse(code.find(_EXECUTOR, "WorkerProc.__init__"))
    if "WorkerWrapperBase(" not in worker or ".init_device()" not in worker:
        return Finding.no(f"{_EXECUTOR}.WorkerProc does not initialise its worker through WorkerWrapperBase")
    hosts = ast.unparse(code.find("vllm.utils.network_utils", "get_ip"))
    if "VLLM_HOST_IP" not in hosts:
        return Finding.no("vllm.utils.network_utils.get_ip does not read VLLM_HOST_IP any more")
    return Finding.yes("workers take their addresses from the environment, and nothing compares them")


def verify(vllm_config: Any, rank: int) -> None:
    """Raise `AddressError` unless the worker of `rank` has the addresses that the plan gives it.

    Without a plan (GLMSPARK_FABRIC) the rules for a rank among several nodes hold, as `serve` applies them.
    """
    from vllm.platforms import current_platform

    parallel = vllm_config.parallel_config
    nccl = bool(current_platform.is_cuda())
    fabric = Fabric.from_environment()
    if fabric is None:
        node = Rank(parallel.nnodes, parallel.node_rank, parallel.master_addr, parallel.master_port)
        check(node, nccl=nccl, port=False)
    elif parallel.world_size > 1:
        fabric.verify(rank, parallel.world_size, nccl=nccl)


def apply() -> None:
    """Wrap the hook that initialises a worker's device."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    upstream = WorkerWrapperBase.init_device

    @functools.wraps(upstream)
    def init_device(self: Any) -> None:
        verify(self.vllm_config, self.global_rank)
        upstream(self)

    WorkerWrapperBase.init_device = init_device


PATCH = Patch(
    name="fabric-addresses",
    title="Every worker's addresses against the plan",
    upstream=(
        "a worker binds its queues to VLLM_HOST_IP or to whatever address the default route has, and gloo "
        "and NCCL choose an interface themselves. Where that is another network than the others use, every "
        "rank waits in wait_until_ready, without a limit and without a word."
    ),
    reason="on a Spark the default route is often Wi-Fi; a wrong address must be an error that says which",
    link="https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/distributed/device_communicators/shm_broadcast.py",
    versions=">=0.32,<0.34",
    needed=needed,
    precondition=precondition,
    apply=apply,
)
