"""Ray nodes for tests: all on this machine, each with a loopback address of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.engine.ranks import FLAGS, Ranks, free_port


@dataclass
class RayNodes(Ranks):
    """One ray node a rank: rank r's node is 127.0.0.(2+r), and the plan says so.

    `nodes`: how many the command lines speak of, `started`: how many there are.
    """

    roll_call: int = field(default_factory=free_port)
    nodes: int = 0
    scratch: Path = field(default_factory=Path)

    def address(self, rank: int) -> str:
        return f"127.0.0.{2 + rank}"

    def command(self, rank: int) -> list[str]:
        words = [sys.executable, "-m", "glmspark.engine.ray_node", "--worker" if rank else "--head"]
        words += ["--address", f"{self.address(0)}:{self.roll_call}", "--node-ip", self.address(rank)]
        words += ["--nodes", str(self.nodes or self.layout.world), "--join-limit", "60"]
        words += ["--", str(self.checkpoint), "--enforce-eager"]
        for name, value in {**FLAGS, **self.flags}.items():
            words += [f"--{name}", value]
        words += ["-tp", str(self.layout.tp), "-pp", str(self.layout.pp)]
        return words if rank else [*words, "--host", "127.0.0.1", "--port", str(self.port)]

    def start_node(self, rank: int) -> None:
        """Start one node, without waiting. Its own temporary directory shows what it leaves."""
        directory = self.scratch / f"glmspark-{rank}"  # as a deployment's is called
        directory.mkdir(exist_ok=True)
        cores = sorted(os.sched_getaffinity(0))
        environment = {
            **os.environ,
            "TMPDIR": str(directory),
            "VLLM_HOST_IP": self.address(rank),
            "GLOO_SOCKET_IFNAME": "lo",
            "VLLM_CPU_OMP_THREADS_BIND": str(cores[rank % len(cores)]),
            **self.environment,
        }
        with (self.logs / f"rank-{rank}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(self.command(rank), stdout=log, stderr=subprocess.STDOUT, env=environment)
            )

    def start(self) -> None:
        for rank in range(self.layout.world):
            self.start_node(rank)

    def await_line(self, rank: int, text: str, seconds: float = 60) -> None:
        """Wait for a node to print a text. Raises AssertionError with its log if it does not."""
        deadline = time.monotonic() + seconds
        while text not in self.log(rank):
            assert time.monotonic() < deadline, f"no {text!r} in:\n{self.log(rank)[-3000:]}"
            assert self.processes[rank].poll() is None, self.log(rank)[-3000:]
            time.sleep(0.1)

    def find(self, rank: int, name: str) -> psutil.Process:
        """The process of a node whose name begins so."""
        for process in psutil.Process(self.processes[rank].pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.name().startswith(name):
                    return process
        raise AssertionError(f"node {rank} has no process {name}")

    def everyone(self) -> list[psutil.Process]:
        """Every process of every node."""
        roots = [psutil.Process(process.pid) for process in self.processes]
        return [one for root in roots for one in (root, *root.children(recursive=True))]

    def end_all(self, seconds: float) -> list[int]:
        """Wait for all nodes to end; their exit codes. Raises subprocess.TimeoutExpired after `seconds`."""
        deadline = time.monotonic() + seconds
        return [process.wait(max(0.01, deadline - time.monotonic())) for process in self.processes]

    def terminate(self, rank: int) -> None:
        self.processes[rank].send_signal(signal.SIGTERM)
