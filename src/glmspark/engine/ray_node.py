"""Start one node of a deployment that uses Ray: `python -m glmspark.engine.ray_node`.

    head:   python -m glmspark.engine.ray_node --head   --address 198.18.0.1:29500 --node-ip 198.18.0.1 \
                --nodes 2 -- MODEL -pp 2 --port 8000
    others: python -m glmspark.engine.ray_node --worker --address 198.18.0.1:29500 --node-ip 198.18.0.2 \
                --nodes 2 -- MODEL -pp 2

The head starts Ray, waits until all nodes have joined (--join-limit seconds, 120 unless said), and serves
vLLM's OpenAI routes with `--distributed-executor-backend ray`; the others join and stay. --address is where
the head's roll call listens; the nodes learn Ray's own address over it. What stands after `--` is `vllm
serve`'s and the same on every node. When one node ends, so do the others, each with the reason.

Environment: VLLM_HOST_IP and GLOO_SOCKET_IFNAME as for any rank; GLMSPARK_RAY_SECRET_FILE names the file
(mode 0600) with the deployment's secret, which is Ray's access token and must be there beyond loopback;
GLMSPARK_FABRIC is the plan: ADDRESS@INTERFACE of each node in rank order, with commas between.

Exit codes: 0 stopped as asked, 1 a process of this node ended or did not start, 2 wrong use, 3 another node
is gone, or did not come.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import ipaddress
import os
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from glmspark.engine import start_method
from glmspark.engine.addresses import AddressError, Rank, check, interface_of, local_addresses
from glmspark.engine.fabric import FABRIC, Fabric
from glmspark.engine.ray.commands import LONGEST_DIRECTORY, SECRET_FILE, RayNode, node_environment
from glmspark.engine.serve import prepare_environment

_OTHER_BACKENDS = ("--nnodes", "-n", "--node-rank", "-r", "--master-addr", "--master-port", "--headless")


class UsageError(RuntimeError):
    """The command line or the environment cannot work; the message says what to change."""


def main(argv: list[str] | None = None) -> None:
    """Check everything, then live until the deployment ends. Ends the process."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in {"-h", "--help"}:
        print(__doc__)
        return
    from glmspark.engine.ray.guard import guard
    from glmspark.engine.ray.node import USAGE, Life, versions
    from glmspark.engine.ray.roll_call import Caller

    try:
        node = parse(argv)
        interface = check_addresses(node, os.environ)
        expected = expected_nodes(node, Fabric.from_environment(os.environ))
        secret_file = os.environ.get(SECRET_FILE)
        secret = read_secret(node, secret_file)
        if importlib.util.find_spec("ray") is None:
            raise UsageError(
                "Ray is not installed in this environment. Install it with `pip install 'ray>=2.60'`."
            )
    except (AddressError, UsageError) as error:
        print(f"glmspark.engine.ray_node: {error}", file=sys.stderr, flush=True)
        raise SystemExit(USAGE) from None
    environment = node_environment(os.environ, node, interface, secret_file)
    prepare_environment(environment, list(node.flags))
    # Workers take their environment from Ray's processes, and those from here.
    environment = start_method.prepared(environment) or environment
    directory = make_directory()
    environment.setdefault("VLLM_RPC_BASE_PATH", str(directory))  # its sockets go with the directory
    caller = Caller(node.ip, interface, versions())
    cpu = start_method.is_cpu_build()
    raise SystemExit(guard(Life(node, directory, environment, caller, secret, expected, cpu)))


def parse(argv: list[str]) -> RayNode:
    """The command line. Raises `UsageError` for what cannot work; argparse itself ends on wrong words."""
    own, divider, flags = _divided(argv)
    parser = argparse.ArgumentParser(prog="python -m glmspark.engine.ray_node", allow_abbrev=False)
    role = parser.add_mutually_exclusive_group(required=True)
    role.add_argument("--head", action="store_true", help="this node serves the API")
    role.add_argument("--worker", action="store_true", help="this node joins the head")
    parser.add_argument("--address", required=True, metavar="IP:PORT", help="the head's roll call")
    parser.add_argument("--node-ip", required=True, metavar="IP", help="this node's address on the fabric")
    parser.add_argument("--nodes", required=True, type=int, metavar="N", help="how many there are in all")
    parser.add_argument("--join-limit", type=float, default=120.0, metavar="SECONDS")
    args = parser.parse_args(own)
    if not divider or not flags:
        raise UsageError("after `--` comes the model and vLLM's flags: ... --nodes 2 -- MODEL -pp 2")
    address, colon, port = args.address.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--address {args.address!r} is not IP:PORT, as in 198.18.0.1:29500")
    for option, value in (("--address", address.strip("[]")), ("--node-ip", args.node_ip)):
        try:
            ipaddress.ip_address(value)
        except ValueError:
            raise UsageError(f"{option}: {value!r} is not an IP address") from None
    if args.nodes < 1 or args.join_limit <= 0:
        raise UsageError(f"--nodes {args.nodes} and --join-limit {args.join_limit} must be above zero")
    node = RayNode(
        args.head, address.strip("[]"), int(port), args.node_ip, args.nodes, args.join_limit, tuple(flags)
    )
    if node.head != (node.ip == node.address):
        raise UsageError(f"--address {node.address}:{node.port} is the head's: its --node-ip, and no other's")
    check_flags(node)
    return node


def _divided(argv: list[str]) -> tuple[list[str], bool, list[str]]:
    if "--" not in argv:
        return argv, False, []
    at = argv.index("--")
    return argv[:at], True, argv[at + 1 :]


def check_flags(node: RayNode) -> None:
    """Raise `UsageError` for flags that belong to another backend, or for ranks that have no node."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--distributed-executor-backend", default="ray")
    known, _ = parser.parse_known_args(list(node.flags))
    words = {word.partition("=")[0] for word in node.flags}
    if clash := sorted(words.intersection(_OTHER_BACKENDS)):
        raise UsageError(f"{', '.join(clash)}: these are for ranks without Ray; leave them out")
    if known.distributed_executor_backend != "ray":
        raise UsageError(f"--distributed-executor-backend {known.distributed_executor_backend} on a ray node")
    if start_method.is_cpu_build() and node.ranks != node.nodes:
        raise UsageError(
            f"-tp times -pp is {node.ranks} ranks, but --nodes is {node.nodes}: on the CPU each has one"
        )


def check_addresses(node: RayNode, environ: Mapping[str, str]) -> str:
    """The interface of this node's address. Raises `AddressError` unless the addresses fit each other.

    Without VLLM_HOST_IP and GLOO_SOCKET_IFNAME in the environment, --node-ip decides.
    """
    interfaces = local_addresses()
    ip = ipaddress.ip_address(node.ip)
    interface = interface_of(ip, interfaces) or ""
    role = "the head" if node.head else "this node"
    names = {"VLLM_HOST_IP": node.ip, "GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    environ = {**names, **{name: value for name, value in environ.items() if name in names and value}}
    if environ["VLLM_HOST_IP"] != node.ip:
        raise AddressError(f"{role}: --node-ip is {node.ip}, but VLLM_HOST_IP={environ['VLLM_HOST_IP']}")
    # Ranks are given out later; here they serve to tell the head, which must have the port, from the others.
    rank = Rank(max(node.nodes, 2), 0 if node.head else 1, node.address, node.port)
    check(rank, environ, interfaces, nccl=not start_method.is_cpu_build(), where=role)
    return interface


def expected_nodes(node: RayNode, fabric: Fabric | None) -> tuple[str, ...]:
    """The nodes' addresses in rank order, from the plan; nothing without one. Raises `AddressError` where the
    plan and the command line contradict each other."""
    if fabric is None:
        return ()
    addresses = tuple(str(entry.address) for entry in fabric.nodes)
    if len(addresses) != node.nodes:
        raise AddressError(f"{FABRIC} has {len(addresses)} nodes, but --nodes is {node.nodes}")
    if node.ip not in addresses:
        raise AddressError(f"--node-ip {node.ip} is not in {FABRIC}, which has {', '.join(addresses)}")
    if addresses[0] != node.address:
        raise AddressError(f"{FABRIC} begins with {addresses[0]}, but the head is {node.address}")
    return addresses


def read_secret(node: RayNode, path: str | None) -> bytes:
    """The deployment's secret. Without a file it is empty, which only loopback allows.

    Raises `UsageError` where it cannot be read, is too short, or others may read it.
    """
    if not path:
        if ipaddress.ip_address(node.address).is_loopback:
            return b""
        raise UsageError(
            f"{SECRET_FILE} is not set: whoever reaches Ray's ports runs code here, so beyond loopback there "
            f"must be a secret. Name a file of mode 0600 with the same 32 or more characters on each node."
        )
    try:
        status = Path(path).stat()
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise UsageError(f"{SECRET_FILE}={path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
        raise UsageError(
            f"{SECRET_FILE}={path} must be a file that only its owner may read: chmod 600 {path}"
        )
    if len(secret) < 32:
        raise UsageError(f"{SECRET_FILE}={path} has {len(secret)} characters; it takes 32 or more")
    return secret


def make_directory() -> Path:
    """An empty directory of our own for Ray's session, where its sockets' paths are short enough.

    In the deployment's own temporary directory if there is one: that goes with the deployment, so nothing of
    Ray's stays where this process is killed before it has cleaned up.
    """
    own = Path(tempfile.gettempdir()) / "rs"  # short
    if own.parent.name.startswith("glmspark-") and len(str(own)) <= LONGEST_DIRECTORY:
        with contextlib.suppress(OSError):  # another ray node has it
            own.mkdir(mode=0o700)
            return own
    for base in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 - short, and the directory itself is private
        if len(base) + len("/glmspark-ray-12345678") <= LONGEST_DIRECTORY:
            return Path(tempfile.mkdtemp(prefix="glmspark-ray-", dir=base))
    raise UsageError(
        "no temporary directory has a path short enough for Ray's sockets; set TMPDIR to a short one"
    )


if __name__ == "__main__":
    main()
