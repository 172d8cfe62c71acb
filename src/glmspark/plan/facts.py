"""What a plan must know of a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from glmspark.nodes.facts.network import Route
    from glmspark.nodes.facts.ports import Listener
    from glmspark.nodes.facts.rdma import RdmaPort

__all__ = ["MachineFacts", "NodeFacts"]


@dataclass(frozen=True)
class MachineFacts:
    """One machine, as it is now. cpus: numbers of the cores that ranks may use. memory in bytes, as
    MemTotal and MemAvailable of /proc/meminfo."""

    hostname: str
    cpus: tuple[int, ...]
    memory_total: int
    memory_available: int
    platform: Literal["cpu", "cuda"] = "cpu"

    @property
    def sparse_attention(self) -> bool:
        """Whether vLLM has a DSA backend here: it has none on the CPU
        (`CpuPlatform.get_attn_backend_cls` refuses `use_sparse`)."""
        return self.platform != "cpu"


@dataclass(frozen=True)
class NodeFacts:
    """One node of a cluster, as it is now.

    board: what tells machines apart. Nodes of a lab have one in common, and with it cores and memory.
    listeners, routes, rdma: of the node's network.
    """

    machine: MachineFacts
    board: str
    listeners: tuple[Listener, ...] = ()
    routes: tuple[Route, ...] = ()
    rdma: tuple[RdmaPort, ...] = ()
