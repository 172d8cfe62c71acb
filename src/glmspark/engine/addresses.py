"""Which address a rank uses, checked before any group is formed: a wrong one makes vLLM wait for ever,
silently.

vLLM's message queues bind to VLLM_HOST_IP, or else to the address of the default route; gloo and NCCL choose
an interface by themselves unless GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name one. On a Spark the default
route is often Wi-Fi, so none of these may be left to chance when there is more than one rank process.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

HOST = "VLLM_HOST_IP"
GLOO = "GLOO_SOCKET_IFNAME"
NCCL = "NCCL_SOCKET_IFNAME"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class AddressError(RuntimeError):
    """This rank's addresses cannot work; the message says which, what was seen, and what to set."""


@dataclass(frozen=True)
class Rank:
    """Where a rank process stands: `node_rank` of `nnodes`, with rank 0 at `master_addr`:`master_port`."""

    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int


def local_addresses() -> dict[str, list[str]]:
    """Interface name to its IPv4 and IPv6 addresses."""
    import psutil  # type: ignore[import-untyped]

    return {
        name: [
            item.address.split("%")[0] for item in items if item.family in {socket.AF_INET, socket.AF_INET6}
        ]
        for name, items in psutil.net_if_addrs().items()
    }


def check(
    rank: Rank,
    environ: Mapping[str, str] = os.environ,
    interfaces: Mapping[str, list[str]] | None = None,
    *,
    nccl: bool = False,
    where: str = "",
    port: bool = True,
) -> None:
    """Raise `AddressError` unless this rank's addresses are set, are this machine's, and fit rank 0's.

    One process that holds all ranks (nnodes 1) needs none of them. `interfaces` is read from the machine when
    not given; `nccl` demands NCCL_SOCKET_IFNAME as well; `where` is how messages call this rank;
    `port`: whether rank 0's port must be free still.
    """
    if rank.nnodes == 1:
        return
    if not 0 <= rank.node_rank < rank.nnodes:
        raise AddressError(
            f"--node-rank {rank.node_rank} is not among 0..{rank.nnodes - 1} (--nnodes {rank.nnodes})"
        )
    where = where or f"rank {rank.node_rank} of {rank.nnodes}"
    interfaces = local_addresses() if interfaces is None else interfaces
    host = _address(environ.get(HOST, ""), HOST, where)
    owner = interface_of(host, interfaces)
    if owner is None:
        raise AddressError(
            f"{where}: {HOST}={host} is no address of this machine, which has {listed(interfaces)}"
        )
    for variable in (GLOO, NCCL) if nccl else (GLOO,):
        _check_interface(variable, environ.get(variable, ""), owner, host, interfaces, where)
    _check_master(rank, host, where, port=port)


def interface_of(address: Address, interfaces: Mapping[str, list[str]]) -> str | None:
    """The interface that has the address, None where this machine has it not.

    All of 127.0.0.0/8 is the loopback interface's, though it lists the first of them only.
    """
    for name, found in interfaces.items():
        if str(address) in found:
            return name
        if address.version == 4 and address.is_loopback and any(text.startswith("127.") for text in found):
            return name
    return None


def _address(text: str, variable: str, where: str) -> Address:
    if not text:
        raise AddressError(
            f"{where}: {variable} is not set, and vLLM would guess an address by the default route. "
            f"Set it to this node's address on the fabric (127.0.0.1 where all ranks are on this machine)."
        )
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise AddressError(f"{where}: {variable}={text!r} is not an IP address") from None


def _check_interface(
    variable: str,
    value: str,
    owner: str,
    host: Address,
    interfaces: Mapping[str, list[str]],
    where: str,
) -> None:
    if not value:
        raise AddressError(
            f"{where}: {variable} is not set, and the collective library would choose an interface itself. "
            f"Set it to the interface that has {host}: {owner}."
        )
    names = value.lstrip("=").split(",")
    if missing := [name for name in names if name not in interfaces]:
        raise AddressError(
            f"{where}: {variable}={value} names {', '.join(missing)}, "
            f"but this machine has {', '.join(interfaces)}"
        )
    if owner not in names:
        raise AddressError(
            f"{where}: {variable}={value}, but {HOST}={host} belongs to {owner}: they must be one network"
        )


def _check_master(rank: Rank, host: Address, where: str, *, port: bool) -> None:
    try:
        master = ipaddress.ip_address(rank.master_addr)
    except ValueError:
        master = None  # a host name: the rank that connects resolves it
    if master is not None and master.is_loopback != host.is_loopback:
        raise AddressError(
            f"{where}: --master-addr {rank.master_addr} and {HOST}={host} cannot meet: "
            f"one is this machine alone, the other a network. Give rank 0's address on the fabric."
        )
    if rank.node_rank == 0 and master is not None:
        if master != host:
            raise AddressError(
                f"{where}: --master-addr {master} must be rank 0's own {HOST}, which is {host}"
            )
        if port:
            _check_free(rank, where)


def _check_free(rank: Rank, where: str) -> None:
    family = socket.AF_INET6 if ":" in rank.master_addr else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((rank.master_addr, rank.master_port))
        except OSError as error:
            raise AddressError(
                f"{where}: port {rank.master_port} on {rank.master_addr} cannot be had ({error.strerror}). "
                f"Choose another --master-port on every rank."
            ) from error


def listed(interfaces: Mapping[str, list[str]]) -> str:
    """A machine's addresses, for people."""
    return ", ".join(f"{address} ({name})" for name, found in interfaces.items() for address in found)
