"""A plan: everything that is decided about a deployment before anything is started. Plain data."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from glmspark.plan.errors import PlanError
from glmspark.plan.flags import FlagValue, flag_words

__all__ = ["Endpoint", "Limits", "Memory", "Plan", "Ports", "Rank"]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Memory(_Data):
    """What one rank takes, in bytes. scratch: activations and the attention's and indexer's work space.
    process: interpreters, libraries and contexts, on rank 0 with the API and the engine core. drafter: of the
    drafter's own checkpoint. graphs: CUDA graphs. network: NCCL's buffers. needed: the sum, or what the
    recipe says a rank needs if that is more, or loading takes.

    load: the most that loading takes, with page cache and one layer's reordering. reserve: left to the rest
    of the machine. by_class: weights by class, the MTP layer's as "mtp".
    """

    weights: int
    kv_cache: int
    scratch: int
    process: int
    needed: int
    drafter: int = 0
    graphs: int = 0
    network: int = 0
    load: int = 0
    reserve: int = 0
    by_class: dict[str, int] = {}

    @property
    def total(self) -> int:
        """The sum of what a running rank takes."""
        running = self.weights + self.kv_cache + self.scratch + self.process
        return running + self.drafter + self.graphs + self.network


class Rank(_Data):
    """One vLLM worker process. host: the node it runs on. layers: [start, end) of the trunk. cpus: the cores
    its OpenMP threads are bound to.

    address, interface: where the other ranks reach it. interfaces: all that NCCL may use. hcas, gid_index:
    the RDMA devices behind them and the index of the address in their GID tables, '' and None without RDMA.
    """

    rank: int
    tp_rank: int
    pp_rank: int
    host: str
    layers: tuple[int, int]
    cpus: tuple[int, ...]
    memory: Memory
    address: str = "127.0.0.1"
    interface: str = "lo"
    interfaces: tuple[str, ...] = ()
    hcas: tuple[str, ...] = ()
    gid_index: int | None = None

    @property
    def omp_bind(self) -> str:
        """The cores as VLLM_CPU_OMP_THREADS_BIND takes them, e.g. "0,2-5"."""
        runs: list[list[int]] = []
        for cpu in self.cpus:
            if runs and cpu == runs[-1][1] + 1:
                runs[-1][1] = cpu
            else:
                runs.append([cpu, cpu])
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


class Endpoint(_Data):
    """Where the OpenAI-compatible API listens."""

    host: str
    port: int


class Ports(_Data):
    """TCP ports at rank 0's address, 0 where they are chosen at the start. master: where the ranks form
    their group. watch: where the node agents watch one another. engine: Ray's, or the lockstep server's."""

    master: int = 0
    watch: int = 0
    engine: int = 0


class Limits(_Data):
    """How long each phase may take, in seconds. join: until all ranks have found each other. start: from the
    first process to an API that answers. stop: from the request to stop until the processes are gone."""

    join: int
    start: int
    stop: int


class Plan(_Data):
    """A recipe on this machine or on a cluster. flags and env are the same for every rank. kv_tokens: tokens
    that the KV cache holds. warnings: what works but will disappoint."""

    recipe: str
    model_dir: str
    served_name: str
    tp: int
    pp: int
    ranks: tuple[Rank, ...]
    endpoint: Endpoint
    limits: Limits
    kv_tokens: int
    platform: Literal["cpu", "cuda"] = "cpu"
    backend: Literal["mp", "ray", "lockstep"] = "mp"
    ports: Ports = Ports()
    flags: dict[str, FlagValue]
    env: dict[str, str]
    warnings: tuple[str, ...] = ()

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.pp

    def flag_words(self) -> tuple[str, ...]:
        """The flags as argv words, to follow the model directory."""
        return flag_words(self.flags)

    def to_json(self) -> dict[str, Any]:
        """Data for a JSON record; `from_json` reads it back."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, data: object) -> Plan:
        """The plan in a record's data. Raises PlanError where it is not one."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise PlanError(
                "the record holds no plan that this version reads",
                step="read the plan",
                seen=f"{place}: {first['msg']}",
                next="stop the deployment with the glmspark that started it, or `glmspark down`",
            ) from None
