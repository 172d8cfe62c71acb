"""The GPU of a node as its driver sees it. On GB10 the driver reports no memory: GPU and host share one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from glmspark.nodes.facts import Fact

FIELDS = (
    "name",
    "driver_version",
    "pstate",
    "clocks.sm",
    "clocks.max.sm",
    "power.draw",
    "temperature.gpu",
    "utilization.gpu",
    "persistence_mode",
)


@dataclass(frozen=True)
class Gpu:
    """A GPU. clocks: MHz. power: watts. temperature: °C. utilization: %. None where it is not reported."""

    name: str
    driver: str
    pstate: str
    clock: float | None
    clock_max: float | None
    power: float | None
    temperature: float | None
    utilization: float | None
    persistence: bool


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on the GPU. memory: bytes, None where it is not reported."""

    pid: int
    name: str
    memory: int | None


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """GPUs from `nvidia-smi --query-gpu=… --format=csv,noheader,nounits`. ValueError for anything else."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(FIELDS):
            raise ValueError(f"not a GPU: {line!r}")
        clock, clock_max, power, temperature, utilization = map(_number, fields[3:8])
        found.append(
            Gpu(
                name=fields[0],
                driver=fields[1],
                pstate=fields[2],
                clock=clock,
                clock_max=clock_max,
                power=power,
                temperature=temperature,
                utilization=utilization,
                persistence=fields[8].lower() == "enabled",
            )
        )
    return tuple(found)


def parse_processes(text: str) -> tuple[GpuProcess, ...]:
    """Processes from `nvidia-smi --query-compute-apps=pid,process_name,used_memory` in MiB, no header."""
    found = []
    for line in text.splitlines():
        pid, _, rest = line.partition(",")
        name, comma, used = rest.rpartition(",")
        if not comma or not pid.strip().isdecimal():
            raise ValueError(f"not a process on the GPU: {line!r}")
        memory = _number(used)
        found.append(GpuProcess(int(pid), name.strip(), None if memory is None else int(memory * 2**20)))
    return tuple(found)


def parse_cuda(text: str) -> str:
    """The CUDA version that the driver supports, from the heading of `nvidia-smi`. ValueError without one."""
    match = re.search(r"CUDA (?:UMD )?Version\s*:\s*([0-9]+\.[0-9]+)", text)
    if match is None:
        raise ValueError("nvidia-smi names no CUDA version")
    return match[1]


def parse_toolkit(text: str) -> str:
    """The version of the container toolkit, from `nvidia-ctk --version`. ValueError without one."""
    match = re.search(r"version\s+([0-9][^\s]*)", text)
    if match is None:
        raise ValueError("nvidia-ctk names no version")
    return match[1]


def _number(text: str) -> float | None:
    try:
        return float(text.split(maxsplit=1)[0])
    except (ValueError, IndexError):
        return None  # [N/A], [Not Supported], "Requested functionality has been deprecated"


GPUS = Fact(
    "GPU",
    ("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"),
    parse_gpus,
)
GPU_PROCESSES = Fact(
    "processes on the GPU",
    ("nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits"),
    parse_processes,
)
CUDA = Fact("CUDA version", ("nvidia-smi",), parse_cuda)
TOOLKIT = Fact("container toolkit", ("nvidia-ctk", "--version"), parse_toolkit)
