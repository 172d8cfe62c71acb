"""The facts that a look at a node asks for."""

from __future__ import annotations

from typing import Any

from glmspark.nodes import guards
from glmspark.nodes.facts import (
    Fact,
    clock,
    cpu,
    disks,
    docker,
    host,
    kernel_log,
    login,
    memory_detail,
    network,
    nvidia,
    ports,
    processes,
    rdma,
    services,
    swaps,
    sysctls,
)

EVERYTHING: tuple[Fact[Any], ...] = (
    host.HOSTNAME,
    host.SYSTEM,
    host.KERNEL,
    host.CMDLINE,
    host.PRODUCT,
    kernel_log.KERNEL_LOG,
    cpu.CORES,
    memory_detail.MEMORY_DETAIL,
    memory_detail.HUGE_FREE,
    sysctls.SYSCTLS,
    swaps.SWAPS,
    disks.DISKS,
    clock.SYNCHRONIZED,
    network.INTERFACES,
    network.ROUTES,
    network.LINKS,
    rdma.RDMA,
    docker.ENGINE,
    docker.IMAGES,
    nvidia.GPUS,
    nvidia.GPU_PROCESSES,
    nvidia.CUDA,
    nvidia.TOOLKIT,
    processes.PROCESSES,
    services.SERVICES,
    login.USER,
    login.SUDO,
    login.LIMITS,
    login.REMOVE_IPC,
    login.LINGER,
    login.VERBS,
    ports.LISTENERS,
    guards.SEEN,
)
