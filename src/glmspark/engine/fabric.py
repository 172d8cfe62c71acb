"""The plan's fabric, as every process of a deployment knows it: which address and interface each node uses.

It stands in one environment variable, GLMSPARK_FABRIC: `ADDRESS@INTERFACE` of each node in rank order, with
commas between, as in "198.18.0.1@fab0,198.18.0.2@fab1". A worker whose own addresses differ from its entry
would wait for the others for ever, or be reached over Wi-Fi; so it compares them before any group is formed.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass

from glmspark.engine.addresses import (
    GLOO,
    HOST,
    NCCL,
    Address,
    AddressError,
    interface_of,
    listed,
    local_addresses,
)

FABRIC = "GLMSPARK_FABRIC"


@dataclass(frozen=True)
class FabricNode:
    """A node's address on the fabric and the interface that has it."""

    address: Address
    interface: str


@dataclass(frozen=True)
class Fabric:
    """All nodes in rank order."""

    nodes: tuple[FabricNode, ...]

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Fabric | None:
        """The plan in GLMSPARK_FABRIC; None where there is none. Raises `AddressError` for anything else."""
        text = environ.get(FABRIC, "")
        if not text:
            return None
        nodes = []
        for entry in text.split(","):
            address, at, interface = entry.strip().partition("@")
            try:
                nodes.append(FabricNode(ipaddress.ip_address(address), interface))
            except ValueError:
                at = ""
            if not at or not interface:
                raise AddressError(
                    f"{FABRIC}: {entry!r} is not ADDRESS@INTERFACE, as in 198.18.0.1@fab0 (all: {text!r})"
                )
        if len({node.address for node in nodes}) != len(nodes):
            raise AddressError(f"{FABRIC}={text} names an address twice")
        return cls(tuple(nodes))

    def verify(
        self,
        rank: int,
        world: int,
        environ: Mapping[str, str] = os.environ,
        interfaces: Mapping[str, list[str]] | None = None,
        *,
        nccl: bool = False,
    ) -> None:
        """Raise `AddressError` unless the worker of `rank` among `world` stands where the plan has it.

        Its node's entry is number rank * nodes // world, for every node holds as many ranks. Compared are the
        address vLLM binds its queues to, the interfaces of the collective libraries (NCCL's with `nccl`), and
        whether this machine has that address on that interface.
        """
        node = self.nodes[rank * len(self.nodes) // world]
        where = f"rank {rank} of {world}: the plan has it at {node.address} on {node.interface}, but"
        interfaces = local_addresses() if interfaces is None else interfaces
        owner = interface_of(node.address, interfaces)
        if owner is None:
            raise AddressError(f"{where} this machine has {listed(interfaces)}")
        if owner != node.interface:
            raise AddressError(f"{where} here {owner} has that address")
        if (host := environ.get(HOST, "")) != str(node.address):
            raise AddressError(f"{where} {HOST} is {host or 'not set'} in this process")
        for variable in (GLOO, NCCL) if nccl else (GLOO,):
            value = environ.get(variable, "")
            if node.interface not in value.lstrip("=").split(","):
                raise AddressError(f"{where} {variable} is {value or 'not set'} in this process")
