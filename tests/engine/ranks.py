"""Rank processes for tests: started as a launch starts them, asked over HTTP, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

START_LIMIT = 280  # seconds; a start takes 25 on an idle machine with two cores
FLAGS = {
    "served-model-name": "glm-tiny",
    "dtype": "float32",
    "max-model-len": "2048",
    "max-num-seqs": "8",
    "kv-cache-memory-bytes": str(128 << 20),
}


def left_behind(shared: set[Path], seconds: float = 5) -> set[Path]:
    """Which of `shared` are still there after the tracker had `seconds` to unlink them."""
    deadline = time.monotonic() + seconds
    while (left := {path for path in shared if path.exists()}) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Layout:
    """Tensor and pipeline parallel sizes."""

    tp: int
    pp: int

    @property
    def world(self) -> int:
        return self.tp * self.pp

    def __str__(self) -> str:
        return f"TP{self.tp}" if self.pp == 1 else f"PP{self.pp}"


@dataclass
class Ranks:
    """A layout's processes, one a rank. Use as a context manager; `logs` holds one file a rank."""

    checkpoint: Path
    layout: Layout
    logs: Path
    flags: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    master_port: int = field(default_factory=free_port)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def command(self, rank: int) -> list[str]:
        """The argv of one rank."""
        words = [sys.executable, "-m", "glmspark.engine.serve", str(self.checkpoint), "--enforce-eager"]
        for name, value in {**FLAGS, **self.flags}.items():
            words += [f"--{name}", value] if value else [f"--{name}"]
        words += ["-tp", str(self.layout.tp), "-pp", str(self.layout.pp)]
        if self.layout.world > 1:
            words += ["--nnodes", str(self.layout.world), "--node-rank", str(rank)]
            words += ["--master-addr", "127.0.0.1", "--master-port", str(self.master_port)]
        return words + (["--headless"] if rank else ["--host", "127.0.0.1", "--port", str(self.port)])

    def variables(self, rank: int) -> dict[str, str]:
        """What only this rank has in its environment."""
        return {}

    def log(self, rank: int) -> str:
        """What a rank wrote so far."""
        return (self.logs / f"rank-{rank}.log").read_text(errors="replace")

    def start(self) -> None:
        """Start every rank, without waiting."""
        for rank in range(self.layout.world):
            self.start_rank(rank)

    def start_rank(self, rank: int) -> None:
        """Start one rank."""
        cores = sorted(os.sched_getaffinity(0))
        mine = cores if self.layout.world == 1 else [cores[rank % len(cores)]]
        environment = {
            **os.environ,
            "VLLM_HOST_IP": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, mine)),
            **self.variables(rank),
            **self.environment,
        }
        with (self.logs / f"rank-{rank}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(self.command(rank), stdout=log, stderr=subprocess.STDOUT, env=environment)
            )

    def wait(self) -> None:
        """Wait until rank 0 answers. Raises AssertionError with the end of a log if a rank ends first."""
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline:
            for rank, process in enumerate(self.processes):
                if process.poll() is not None:
                    raise AssertionError(
                        f"rank {rank} ended with {process.returncode}:\n{self.log(rank)[-3000:]}"
                    )
            try:
                if httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=2).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        raise AssertionError(f"not healthy after {START_LIMIT} s:\n{self.log(0)[-3000:]}")

    def stop(self) -> None:
        """Ask every rank to end, and kill what has not after 20 s."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def shared_memory(self) -> set[Path]:
        """Files in /dev/shm that any of the ranks' processes has mapped."""
        found = set()
        for process in self.processes:
            tree = psutil.Process(process.pid)
            for member in [tree, *tree.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    found |= {Path(item.path.split(" ")[0]) for item in member.memory_maps()}
        return {path for path in found if path.is_relative_to("/dev/shm")}

    def __enter__(self) -> Ranks:
        self.start()
        try:
            self.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def complete(self, prompts: list[tuple[list[int], int]]) -> list[list[int]]:
        """Greedy continuations of (token ids, most tokens), all asked at once, with the stop token."""
        return asyncio.run(self._complete(prompts))

    async def _complete(self, prompts: list[tuple[list[int], int]]) -> list[list[int]]:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=240) as client:

            async def one(ids: list[int], max_tokens: int) -> list[int]:
                body = {
                    "model": "glm-tiny",
                    "prompt": ids,
                    "max_tokens": max_tokens,
                    "temperature": 0,
                    "return_token_ids": True,
                }
                response = await client.post("/v1/completions", json=body)
                assert response.status_code == 200, response.text
                return list(response.json()["choices"][0]["token_ids"])

            return await asyncio.gather(*(one(*prompt) for prompt in prompts))
