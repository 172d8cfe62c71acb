"""From a cluster's plan to what each node runs: argv lists, environments, agents' specs. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glmspark.config.cluster import Runtime
from glmspark.errors import GlmsparkError
from glmspark.launch.backends import BACKENDS
from glmspark.nodes.facts.places import GPU_OPTIONS, VERBS_OPTIONS
from glmspark.plan import Plan

__all__ = ["Seat", "container_argv", "container_name", "make_spec", "process_argv", "rank_env"]

SECRET = "lockstep-secret"  # noqa: S105 - a file's name
"""In the deployment's directory on each node: what lockstep's and Ray's processes know one another by."""


@dataclass(frozen=True)
class Seat:
    """A rank's node. directory: the deployment's there. scratch: for sockets and temporary files. cache: what
    outlives a start (compiled kernels). user, uid, gid: who connects over SSH. gpu, verbs: whether there is a
    GPU that answers, and RDMA devices. links: directories to which files of the models lead by links."""

    node: str
    directory: str
    scratch: str
    cache: str
    user: str
    uid: int
    gid: int
    gpu: bool = False
    verbs: bool = False
    links: tuple[str, ...] = ()

    @property
    def secret(self) -> str:
        """The file with the deployment's secret."""
        return f"{self.directory}/{SECRET}"


def rank_env(plan: Plan, rank: int, seat: Seat) -> dict[str, str]:
    """The variables of one rank, without secrets. What a recipe may set wins over what is found out here."""
    own = plan.ranks[rank]
    found: dict[str, str] = {}
    if plan.platform == "cuda":
        found["NCCL_IB_DISABLE"] = "0" if own.hcas else "1"
        if own.hcas:
            found["NCCL_IB_HCA"] = f"={','.join(own.hcas)}"
        if own.gid_index is not None:
            found["NCCL_IB_GID_INDEX"] = str(own.gid_index)
    fixed = {
        "VLLM_HOST_IP": own.address,
        "GLOO_SOCKET_IFNAME": own.interface,
        "TP_SOCKET_IFNAME": own.interface,
        "NCCL_SOCKET_IFNAME": f"={','.join(own.interfaces)}" if own.interfaces else own.interface,
        "GLMSPARK_FABRIC": ",".join(f"{one.address}@{one.interface}" for one in plan.ranks),
        "VLLM_RPC_BASE_PATH": seat.scratch,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_COLOR": "0",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": seat.scratch,
        "GLMSPARK_OBSERVE_DIR": seat.scratch,
        "SPT_NOENV": "1",  # or setproctitle writes vLLM's titles over the environment
        "HF_HUB_OFFLINE": "1",  # the model lies there whole
    }
    if plan.platform == "cpu":
        fixed["VLLM_CPU_OMP_THREADS_BIND"] = own.omp_bind
    if plan.world == 1:
        del fixed["GLMSPARK_FABRIC"]
    return {**found, **plan.env, **fixed, **BACKENDS[plan.backend].env(plan, rank, seat.secret)}


def process_argv(plan: Plan, rank: int, *, venv: str) -> list[str]:
    """The command of one rank in a Python environment."""
    return [f"{venv}/bin/python", *BACKENDS[plan.backend].words(plan, rank)]


def container_name(deployment: str, rank: int) -> str:
    """How a rank's container is called on its node."""
    return f"glmspark-{deployment}-r{rank}"


def container_argv(
    plan: Plan,
    rank: int,
    seat: Seat,
    *,
    runtime: Runtime,
    image: str,
    deployment: str,
    deployment_id: str,
    draft_dir: str | None = None,
) -> list[str]:
    """`docker run` for one rank; its environment comes from a file that the node's agent writes.

    image: its id, so that what runs is what was looked at. draft_dir: where a drafter's own checkpoint lies.
    The container shares the node's network and has the rights of the SSH user. Its /dev/shm is its own, as
    large as half of the memory, and goes with it: nothing of it can stay on the node, whatever is killed, and
    the one rank of a node shares none with others. Devices instead of --privileged; no --rm and no restart:
    the deployment ends and begins as a whole.
    """
    argv = ["docker", "run", "--detach", "--init", "--pull", "never"]
    argv += ["--name", container_name(deployment, rank)]
    argv += ["--label", f"glmspark.deployment={deployment}", "--label", f"glmspark.id={deployment_id}"]
    argv += ["--network", "host", "--ipc", "host", "--uts", "host", "--restart", "no"]
    argv += ["--tmpfs", "/dev/shm:rw,nosuid,nodev,exec,mode=1777"]  # noqa: S108 - the container's own
    argv += ["--log-driver", "json-file", "--log-opt", "max-size=50m"]
    argv += ["--user", f"{seat.uid}:{seat.gid}"]
    if seat.gpu:
        argv += GPU_OPTIONS
    if seat.verbs:
        argv += VERBS_OPTIONS
    read_only = [*runtime.mounts, plan.model_dir]
    for path in (*([] if draft_dir is None else [draft_dir]), *seat.links):
        if not any(path == one or path.startswith(f"{one.rstrip('/')}/") for one in read_only):
            read_only.append(path)
    if plan.backend != "mp":
        read_only.append(seat.secret)
    for path in read_only:
        argv += ["--mount", f"type=bind,src={path},dst={path},readonly"]
    for path in (seat.scratch, seat.cache):
        argv += ["--mount", f"type=bind,src={path},dst={path}"]
    argv += ["--workdir", seat.scratch, "--env-file", f"{seat.directory}/env"]
    argv += ["--entrypoint", runtime.python or "python3", image]
    return [*argv, *BACKENDS[plan.backend].words(plan, rank)]


def container_env(env: Mapping[str, str], seat: Seat) -> dict[str, str]:
    """A rank's variables in a container: the user of another machine is not known there. GlmsparkError for a
    value of several lines, which no file of variables can hold."""
    whole = {"HOME": seat.cache, "USER": seat.user, "LOGNAME": seat.user, **env}
    for name, value in whole.items():
        if "\n" in value:
            raise GlmsparkError(
                f"{name} has a line break, which a container's environment cannot hold",
                step="make the ranks' commands",
                next="change it under engine.env in the recipe, or use runtime: {kind: venv}",
            )
    return whole


@dataclass(frozen=True)
class Start:
    """What is one start's own. watch_secret: of the agents. engine_secret: of lockstep or Ray. key: the
    API's."""

    name: str
    id: str
    watch_secret: str
    engine_secret: str
    key: str | None = None


def make_spec(
    plan: Plan, rank: int, seat: Seat, start: Start, argv: list[str], env: Mapping[str, str], runtime: Runtime
) -> dict[str, Any]:
    """What a node's agent is told, but the record and what it judges by (node_agent.spec has the keys)."""
    inside = runtime.kind == "docker"
    secrets: dict[str, str] = {"watch": start.watch_secret}
    environment = dict(env)
    if start.key is not None and rank == 0:
        secrets["api_key"] = start.key
        if inside:
            environment["VLLM_API_KEY"] = start.key
    if plan.backend != "mp":
        secrets["lockstep"] = start.engine_secret
    meet = f"{plan.ranks[0].address}:{plan.ports.watch}" if plan.world > 1 else None
    return {
        "version": 1,
        "id": start.id,
        "name": start.name,
        "node": seat.node,
        "rank": rank,
        "world": plan.world,
        "runtime": "container" if inside else "process",
        "argv": argv,
        "env": {} if inside else environment,
        "env_file": environment if inside else {},
        "container": container_name(start.name, rank) if inside else None,
        "directory": seat.directory,
        "scratch": seat.scratch,
        "secrets": secrets,
        "watch": {
            "listen": meet if rank == 0 else None,
            "connect": meet if rank else None,
            "silence": 8.0,
        },
        "limits": {"stop": float(plan.limits.stop)},
    }
