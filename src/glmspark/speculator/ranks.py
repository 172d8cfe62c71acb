"""The ranks of a training, as torchrun starts them; one where it does not."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from glmspark.speculator.shape import DrafterError

__all__ = ["Ranks"]


@dataclass(frozen=True)
class Ranks:
    """This rank and how many there are. device: torch's name of what this one computes on."""

    rank: int
    count: int
    device: str

    @classmethod
    def at_hand(cls, device: str | None = None) -> Ranks:
        """From torchrun's environment. device: cpu or cuda; by default CUDA where there is any.

        Raises DrafterError for a device that is not there.
        """
        kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
            raise DrafterError(f"there is no device {kind!r} to train on here", next="--device cpu or cuda")
        count, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if count > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if kind == "cuda" else "gloo")
        if kind == "cuda":
            torch.cuda.set_device(local)
        return cls(rank, count, f"cuda:{local}" if kind == "cuda" else "cpu")

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    @property
    def kind(self) -> str:
        """cpu or cuda."""
        return self.device.partition(":")[0]

    def average(self, module: nn.Module) -> None:
        """Put the mean over all ranks into every parameter's gradient."""
        if self.count == 1:
            return
        for parameter in module.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= self.count

    def end(self) -> None:
        """Wait for the others and leave the group."""
        if self.count > 1:
            dist.barrier()
            dist.destroy_process_group()
