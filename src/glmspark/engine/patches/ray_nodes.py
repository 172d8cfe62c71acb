"""Ray: ranks on nodes in the plan's order, and what belongs to one node stays there."""

from __future__ import annotations

import ast
import functools
import os
from typing import Any

from glmspark.engine import code as look
from glmspark.engine.addresses import AddressError
from glmspark.engine.code import Code
from glmspark.engine.fabric import FABRIC, Fabric
from glmspark.engine.patch import Finding, Patch, Target
from glmspark.engine.ray.commands import SWITCH

_UTILS = "vllm.v1.executor.ray_utils"
_EXECUTOR = "vllm.v1.executor.ray_executor_v2"
_INIT = "RayExecutorV2._init_executor"
_SORT = "get_bundles_sorted_by_node"
_KEPT = "WORKER_SPECIFIC_ENV_VARS"

NODE_VARIABLES = frozenset(
    {
        "GLOO_SOCKET_IFNAME",
        "NCCL_IB_GID_INDEX",
        "NCCL_IB_HCA",
        "NCCL_SOCKET_IFNAME",
        "TMPDIR",
        "TP_SOCKET_IFNAME",
        "UCX_NET_DEVICES",
        "VLLM_API_KEY",
        "VLLM_CPU_OMP_THREADS_BIND",
        "VLLM_RPC_BASE_PATH",
    }
)
"""What each node has of its own, or what only the head is to have."""


def needed(_target: Target) -> str | None:
    """None below a ray node."""
    if os.environ.get(SWITCH) == "1":
        return None
    return f"this process is not part of a Ray cluster of ours ({SWITCH})"


def precondition(code: Code) -> Finding:
    """The executor copies the driver's environment but for a set of names, and orders nodes by their ids."""
    source = code.source(_UTILS)
    if f"{_KEPT}: set[str] = {{" not in source:
        return Finding.no(f"{_UTILS} has no set {_KEPT}")
    init = ast.unparse(code.find(_EXECUTOR, _INIT))
    if f"worker_specific_vars={_KEPT}" not in init:
        return Finding.no(f"{_EXECUTOR}.{_INIT} does not leave out {_KEPT} any more")
    if (seen := look.parameters(code.find(_UTILS, _SORT))) != ["placement_group"]:
        return Finding.no(f"{_UTILS}.{_SORT} takes ({', '.join(seen)}), not (placement_group)")
    if f"{_SORT}(placement_group)" not in init:
        return Finding.no(f"{_EXECUTOR}.{_INIT} does not order its bundles by {_SORT} any more")
    names = {name for name in NODE_VARIABLES if f'"{name}"' in source}
    if names == NODE_VARIABLES:
        return Finding.superseded(f"{_KEPT} has all of a node's variables")
    return Finding.yes("the driver's interface names go to every worker, and nodes are ordered by random ids")


def in_plan_order(bundles: list[tuple[int, str, str]], fabric: Fabric) -> list[tuple[int, str, str]]:
    """(bundle, node id, node address) in the order of the plan's nodes.

    Raises `AddressError` for a node that is not in the plan.
    """
    order = {str(node.address): number for number, node in enumerate(fabric.nodes)}
    if strange := sorted({address for _, _, address in bundles} - order.keys()):
        raise AddressError(
            f"Ray has placed a worker on {', '.join(strange)}; {FABRIC} has {', '.join(order)}"
        )
    return sorted(bundles, key=lambda bundle: order[bundle[2]])


def apply() -> None:
    """Extend the set, and wrap the function that orders the nodes, where the executor has it from."""
    from vllm.v1.executor import ray_executor_v2, ray_utils

    ray_utils.WORKER_SPECIFIC_ENV_VARS.update(NODE_VARIABLES)
    upstream = ray_utils.get_bundles_sorted_by_node

    @functools.wraps(upstream)
    def get_bundles_sorted_by_node(placement_group: Any) -> list[tuple[int, str, str]]:
        bundles = upstream(placement_group)
        fabric = Fabric.from_environment()
        return bundles if fabric is None else in_plan_order(bundles, fabric)

    for module in (ray_utils, ray_executor_v2):
        module.get_bundles_sorted_by_node = get_bundles_sorted_by_node


PATCH = Patch(
    name="ray-nodes",
    title="Ray: ranks in the plan's order, a node's settings stay there",
    upstream=(
        "the Ray executor copies the driver's whole environment to every worker, interface names and API key "
        "included, where the node has not set them itself; and after the head's it orders nodes by Ray's "
        "random ids, so that a pipeline stage lands on another node each time."
    ),
    reason="nodes differ in their interfaces, and the plan says which node holds which layers",
    link="https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/v1/executor/ray_utils.py",
    versions=">=0.32,<0.34",
    needed=needed,
    precondition=precondition,
    apply=apply,
)
