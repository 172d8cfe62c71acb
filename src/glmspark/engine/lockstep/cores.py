"""Which cores a lockstep rank's worker computes on, on the CPU.

vLLM takes all ranks of a deployment without `--nnodes` for local and wants the cores of each in
VLLM_CPU_OMP_THREADS_BIND ("0-3|4-7"). A lockstep rank may have been given just its own, as on a machine of
its own, or nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

VARIABLE = "VLLM_CPU_OMP_THREADS_BIND"
UNBOUND = "nobind"


def own_cores(environ: Mapping[str, str], local_rank: int, allowed: Sequence[int]) -> str:
    """This rank's part of the variable, or an even share of `allowed` among the ranks of this machine.

    torchrun says in LOCAL_WORLD_SIZE how many these are; without it there is one.
    """
    text = environ.get(VARIABLE, "")
    if text == UNBOUND:
        return text
    if text and text != "auto":
        parts = text.split("|")
        return parts[local_rank] if len(parts) > local_rank else parts[0]
    ranks = int(environ.get("LOCAL_WORLD_SIZE") or 1)
    if len(allowed) < ranks:
        return str(allowed[local_rank % len(allowed)])
    share, rest = divmod(len(allowed), ranks)
    start = local_rank * share + min(local_rank, rest)
    return ",".join(map(str, allowed[start : start + share + (local_rank < rest)]))


def bind(local_rank: int, world: int) -> None:
    """Give this process its cores and as many threads, and tell vLLM the same in its own terms."""
    mine = own_cores(os.environ, local_rank, sorted(os.sched_getaffinity(0)))
    if mine == UNBOUND:
        return
    import torch
    from vllm.utils.cpu_resource_utils import parse_id_list

    os.environ[VARIABLE] = "|".join([mine] * world)
    cores = parse_id_list(mine)
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(len(cores))
