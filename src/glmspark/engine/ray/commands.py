"""What a ray node runs, as pure data: argv and environment."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SWITCH = "GLMSPARK_RAY_NODE"
"""Set in the environment of everything a ray node starts: there the CPU platform knows Ray."""
SECRET_FILE = "GLMSPARK_RAY_SECRET_FILE"  # noqa: S105 - the name of a variable
"""Names the file with the deployment's secret, which is Ray's access token as well."""

OBJECT_STORE = 80_000_000
"""Bytes. The least that Ray takes (75 MiB): vLLM sends its messages past the object store."""

LONGEST_DIRECTORY = 44
"""Characters. Ray puts its sockets 62 characters further down, and a socket's path may have 107."""

_SETTINGS = {
    # A node that loads 90 GB is slow to answer; whether it lives, the roll call knows sooner and better.
    "RAY_health_check_period_ms": "5000",
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "60",
    # On unified memory a model fills the machine by design; Ray would kill its workers for it.
    "RAY_memory_monitor_refresh_ms": "0",
    # A worker imports vLLM before it reports, up to a minute on a busy machine.
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_BACKEND_LOG_LEVEL": "warning",
}
"""Defaults that a recipe's environment overrides."""

_FIXED = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_START_HOOK": "glmspark.engine.ray.start_hook.without_client_server",
    "PYTHONUNBUFFERED": "1",
    "SPT_NOENV": "1",  # or process titles are written over the environment, by which processes are known
    SWITCH: "1",
}


@dataclass(frozen=True)
class RayNode:
    """One node of a Ray cluster, as its command line says.

    address, port: where the head's roll call listens. ip: this node's own address on the fabric. nodes: how
    many there are. join_limit: seconds until all must have met. flags: the model and vLLM's own flags.
    """

    head: bool
    address: str
    port: int
    ip: str
    nodes: int
    join_limit: float
    flags: tuple[str, ...]

    @property
    def ranks(self) -> int:
        """How many ranks the flags ask for: tensor times pipeline parallel size."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
        parser.add_argument("--pipeline-parallel-size", "-pp", type=int, default=1)
        known, _ = parser.parse_known_args(list(self.flags))
        return int(known.tensor_parallel_size * known.pipeline_parallel_size)


def start_command(node: RayNode, control: str, directory: Path, *, cpu: bool) -> list[str]:
    """`ray start` on this node. control: HOST:PORT of Ray's control service (on the head: where to put it).

    No dashboard, no log monitor (the node prints its workers' lines itself), the smallest object store, one
    core (Ray starts an idle worker for each). On the CPU a node has one rank, so Ray is told of one device;
    elsewhere it counts them.
    """
    words = [sys.executable, "-m", "ray.scripts.scripts", "start"]
    if node.head:
        words += [
            "--head",
            f"--port={control.rpartition(':')[2]}",
            "--include-dashboard=false",
            "--no-monitor",
        ]
    else:
        words.append(f"--address={control}")
    words += [
        f"--node-ip-address={node.ip}",
        f"--temp-dir={directory}",
        "--disable-usage-stats",
        "--include-log-monitor=false",
        f"--object-store-memory={OBJECT_STORE}",
        "--num-cpus=1",
    ]
    return words + (["--num-gpus=1"] if cpu else [])


def serve_command(node: RayNode) -> list[str]:
    """vLLM's OpenAI server on the head, which starts a worker on every node through Ray."""
    return [
        sys.executable,
        "-m",
        "glmspark.engine.serve",
        *node.flags,
        "--distributed-executor-backend",
        "ray",
    ]


def node_environment(
    environ: Mapping[str, str], node: RayNode, interface: str, secret_file: str | None
) -> dict[str, str]:
    """The environment of Ray and of the server on this node; `secret_file` is Ray's access token."""
    environment = {**_SETTINGS, **environ, **_FIXED}
    environment.setdefault("VLLM_HOST_IP", node.ip)
    environment.setdefault("GLOO_SOCKET_IFNAME", interface)
    environment.setdefault("NCCL_SOCKET_IFNAME", interface)
    # A variable from the caller's shell must not lead to another cluster.
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        environment.pop(name, None)
    if secret_file:
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": secret_file}
    else:
        environment["RAY_AUTH_MODE"] = "disabled"
    return environment
