"""From a plan to what is run for each rank: argv and environment, as pure data."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from glmspark.config.files import write_atomic
from glmspark.errors import UsageError
from glmspark.launch.sweep import HOME_VARIABLE, ID_VARIABLE

if TYPE_CHECKING:
    from glmspark.plan import Plan

KEY_VARIABLE = "VLLM_API_KEY"
"""vLLM reads the API key from here, so it never stands in a command line."""

SECRET_VARIABLE = "GLMSPARK_LOCKSTEP_SECRET_FILE"  # noqa: S105 - the variable's name
"""Names the file by which lockstep's ranks know one another."""

_PER_NODE = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "NODE_RANK",
    KEY_VARIABLE,
    "TORCHELASTIC_USE_AGENT_STORE",
)
"""Variables that torch and vLLM act on and that must not reach a rank from the caller's shell by chance."""


@dataclass(frozen=True)
class Reach:
    """How the other ranks reach a rank's node: its address on their common network, and that interface."""

    address: str = "127.0.0.1"
    interface: str = "lo"


@dataclass(frozen=True)
class Site:
    """Where the ranks of one start meet and keep their things.

    scratch: the start's own directory for sockets and temporary files. master_port: rank 0's port for forming
    the group. reach: of each rank.
    """

    deployment_id: str
    home: Path
    scratch: Path
    master_port: int
    reach: tuple[Reach, ...]

    @property
    def secret_file(self) -> Path:
        """Where the ranks find what they prove themselves by to one another."""
        return self.scratch / "secret"


def rank_argv(plan: Plan, rank: int, site: Site, *, python: str) -> list[str]:
    """The command of one rank.

    vLLM's multi-node form, also on one machine: rank 0 serves the API and forms the group, the others follow.
    In lockstep the ranks differ by their environment alone.
    """
    from glmspark.launch.backends import BACKENDS  # here, as the supervisor and the probes need no plan

    if plan.backend == "lockstep":
        return [python, *BACKENDS["lockstep"].words(plan, rank)]
    argv = [python, "-m", "glmspark.engine.serve", plan.model_dir, *plan.flag_words()]
    if plan.world > 1:
        argv += ["--nnodes", str(plan.world), "--node-rank", str(rank)]
        argv += ["--master-addr", site.reach[0].address, "--master-port", str(site.master_port)]
    if rank == 0:
        return [*argv, "--host", plan.endpoint.host, "--port", str(plan.endpoint.port)]
    return [*argv, "--headless"]


def rank_env(plan: Plan, rank: int, site: Site) -> dict[str, str]:
    """What is added to the environment of one rank; secrets are added at the last moment, not here."""
    from glmspark.launch.backends import BACKENDS

    return {
        **plan.env,
        **BACKENDS[plan.backend].env(_meeting_at(plan, site), rank, str(site.secret_file)),
        "VLLM_HOST_IP": site.reach[rank].address,
        "GLOO_SOCKET_IFNAME": site.reach[rank].interface,
        "VLLM_CPU_OMP_THREADS_BIND": plan.ranks[rank].omp_bind,
        "VLLM_RPC_BASE_PATH": str(site.scratch),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_COLOR": "0",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(site.scratch),
        "SPT_NOENV": "1",  # or setproctitle writes vLLM's titles over the environment, and over these marks
        ID_VARIABLE: site.deployment_id,
        HOME_VARIABLE: str(site.home),
    }


def _meeting_at(plan: Plan, site: Site) -> Plan:
    """The plan with the port that was chosen for this start."""
    ports = plan.ports.model_copy(update={"master": site.master_port, "engine": site.master_port})
    return plan.model_copy(update={"ports": ports})


def lay_out_secret(env: Mapping[str, str]) -> None:
    """Write a fresh secret where a rank's environment says that it looks for one; nothing where it does not.

    All ranks of a start look at the same place. Raises StateError where it cannot be written.
    """
    if place := env.get(SECRET_VARIABLE):
        write_atomic(Path(place), secrets.token_hex(32).encode(), mode=0o600)


def inherited_env(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment without what would change a rank behind the plan's back."""
    return {name: value for name, value in environ.items() if name not in _PER_NODE}


def client_url(host: str, port: int) -> str:
    """The base URL a client on this machine uses for a server bound to `host`."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{port}/v1"
    if address.is_unspecified:
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"http://[{address}]:{port}/v1" if address.version == 6 else f"http://{address}:{port}/v1"


def is_loopback(host: str) -> bool:
    """Whether a server bound to `host` is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_listen(host: str, port: int) -> None:
    """Raises UsageError where vLLM could not listen there: another machine's address, a port of root's.

    It is tried, as vLLM does it, and let go of at once.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, UnicodeError) as error:  # the latter: what can be no host name
            reason = error.strerror if isinstance(error, OSError) else "it is no host name"
            raise UsageError(
                f"cannot listen on {host}:{port}: {reason}",
                host="this machine",
                step="check the port",
                next="give --host an address of this machine, or choose another --port",
            ) from error


def free_port(address: str) -> int:
    """A TCP port that is free now on an address of this machine. UsageError where it has no such address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            raise UsageError(
                f"cannot listen on {address}: {error.strerror}",
                seen=str(error),
                next="give --host an address of this machine",
            ) from error
        port: int = probe.getsockname()[1]
        return port
