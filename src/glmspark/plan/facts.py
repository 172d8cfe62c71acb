"""What a plan must know of a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["MachineFacts"]


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
