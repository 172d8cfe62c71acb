"""Which ports, cables and addresses a lab has: pure arithmetic over its spec.

All network gear is one namespace, the *switch*: for each network in it a bridge, for each port of a node a
veth pair with one end in the node and the other on the bridge. A cable between two nodes is a bridge with two
ports, so that taking a port down looks like a pulled cable.

Addresses come from 198.18.0.0/15, set aside for tests of network devices (RFC 2544), so no real network is
hidden or reached. Each lab of a machine has its own sixteenth of it, its *slot*.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from glmspark.lab.spec import LabSpec, Topology

POOL = ipaddress.IPv4Network("198.18.0.0/15")
SLOTS = 16

FABRIC_INTERFACES = ("enp1s0f0np0", "enp1s0f1np1")
"""As the two ports of a Spark's ConnectX-7 are called."""
WIFI_INTERFACE = "wlP9s9"
"""As a Spark's Wi-Fi is called."""

FABRIC_MTU, WIFI_MTU = 9000, 1500
WIFI_RATE = 300_000_000
"""Bits per second: traffic on the wrong interface shows as slow, too."""

_FIRST_HOST, _MACHINE_HOST, _GATEWAY_HOST = 11, 2, 1


@dataclass(frozen=True)
class Port:
    """One end of a link.

    node: the node's name, None for the machine the lab runs on. interface: what it is called there. far: the
    other end of the veth pair, in the switch. address: with the network's prefix.
    """

    node: str | None
    interface: str
    far: str
    address: ipaddress.IPv4Interface

    @property
    def name(self) -> str:
        """What people call this link: NODE:INTERFACE."""
        return f"{self.node or 'machine'}:{self.interface}"


@dataclass(frozen=True)
class Network:
    """A bridge in the switch with its ports. wifi: whether it is the Wi-Fi-like one."""

    name: str
    bridge: str
    subnet: ipaddress.IPv4Network
    ports: tuple[Port, ...]
    wifi: bool = False

    @property
    def gateway(self) -> ipaddress.IPv4Interface:
        """The address that the switch itself has on the Wi-Fi-like network, where default routes end."""
        return _address(self.subnet, _GATEWAY_HOST)


@dataclass(frozen=True)
class Route:
    """A host route on a node: reach `to` through the neighbour `via` on `interface`."""

    to: ipaddress.IPv4Address
    via: ipaddress.IPv4Address
    interface: str


@dataclass(frozen=True)
class Wiring:
    """The whole network of a lab."""

    slot: int
    nodes: tuple[str, ...]
    networks: tuple[Network, ...]

    @property
    def machine(self) -> Port:
        """The machine's own port."""
        return next(port for port in self.ports() if port.node is None)

    @property
    def wifi(self) -> Network:
        """The Wi-Fi-like network."""
        return next(network for network in self.networks if network.wifi)

    def ports(self) -> Iterator[Port]:
        """All ports of all networks."""
        for network in self.networks:
            yield from network.ports

    def fabric(self, node: str) -> list[Port]:
        """The fabric ports of a node, in the order of its interfaces."""
        found = [
            port
            for network in self.networks
            if not network.wifi
            for port in network.ports
            if port.node == node
        ]
        return sorted(found, key=lambda port: port.interface)

    def wifi_port(self, node: str) -> Port:
        """The Wi-Fi-like port of a node."""
        return next(port for port in self.wifi.ports if port.node == node)

    def reached_at(self, node: str) -> ipaddress.IPv4Address:
        """The address at which the machine reaches a node: on the network it has joined itself."""
        home = next(network for network in self.networks if self.machine in network.ports)
        return next(port.address.ip for port in home.ports if port.node == node)

    def routes(self, node: str) -> list[Route]:
        """Host routes to fabric addresses that no cable of the node leads to.

        In a ring every link is a network of its own: the way to the rest goes through a neighbour, the
        shorter way round, clockwise where both are equal.
        """
        rings = [network for network in self.networks if not network.wifi]
        if len(rings) < 2:
            return []
        count, me = len(self.nodes), self.nodes.index(node)
        own = {network.name for network in rings if any(port.node == node for port in network.ports)}
        found = []
        for network in rings:
            if network.name in own:
                continue
            for port in network.ports:
                if port.node is None:
                    continue
                ahead = (self.nodes.index(port.node) - me) % count
                step = 1 if ahead <= count - ahead else -1
                neighbour = self.nodes[(me + step) % count]
                mine, theirs = self._shared(node, neighbour)
                found.append(Route(port.address.ip, theirs.address.ip, mine.interface))
        return sorted(found, key=lambda route: route.to)

    def _shared(self, one: str, other: str) -> tuple[Port, Port]:
        for network in self.networks:
            ends = {port.node: port for port in network.ports}
            if not network.wifi and one in ends and other in ends:
                return ends[one], ends[other]
        raise ValueError(f"no cable joins {one} and {other}")

    def select(self, name: str) -> list[Port]:
        """The ports that a name means: a node, NODE:INTERFACE, a cable such as spark1-spark2, or a network.

        A node means all its links; the machine's own port is meant only by its own name. Empty where nothing
        bears the name.
        """
        for network in self.networks:
            if name == network.name:
                return [port for port in network.ports if port.node is not None]
        return [port for port in self.ports() if name in (port.node, port.name)]

    def names(self) -> list[str]:
        """All names `select` knows, for help and completion."""
        links = [port.name for port in self.ports() if port.node is not None]
        return [*self.nodes, *links, *(network.name for network in self.networks)]


def machine_interface(slot: int) -> str:
    """What the machine's own port is called."""
    return f"glmlab{slot}"


def wire(spec: LabSpec, slot: int) -> Wiring:
    """The wiring of a lab in a slot (0 to 15)."""
    if not 0 <= slot < SLOTS:
        raise ValueError(f"slot {slot} is not one of {SLOTS}")
    names = tuple(f"spark{number}" for number in range(1, spec.nodes + 1))
    switched = spec.topology is Topology.SWITCH
    if switched:
        subnet = _fabric_subnet(slot, 0)
        ports = tuple(_fabric_port(number, 0, subnet) for number in range(spec.nodes))
        fabric = [Network("fabric", "fabric", subnet, (*ports, _machine_port(slot, subnet)))]
    else:
        fabric = [
            Network(f"{names[min(one, other)]}-{names[max(one, other)]}", f"cable{index + 1}", subnet, ends)
            for index, (one, other) in enumerate(_cables(spec))
            for subnet in (_fabric_subnet(slot, index),)
            for ends in (_ends(one, other, spec, subnet),)
        ]
    subnet = ipaddress.IPv4Network(f"198.19.{16 * slot}.0/24")
    wifi = tuple(
        Port(names[number], WIFI_INTERFACE, f"n{number + 1}w", _address(subnet, _FIRST_HOST + number))
        for number in range(spec.nodes)
    )
    if not switched:
        wifi += (_machine_port(slot, subnet),)
    return Wiring(slot, names, (*fabric, Network("wifi", "wifi", subnet, wifi, wifi=True)))


def free_slots(routes: str, interfaces: Iterable[str]) -> list[int]:
    """Slots whose interface name is free and whose addresses no route of the machine leads to.

    routes: what `ip -json -4 route show table all` prints. interfaces: names of the machine's interfaces.
    Raises ValueError where routes are not that. Default routes do not count: they lead everywhere.
    """
    taken = set(interfaces)
    nets = []
    for entry in json.loads(routes):
        destination = entry["dst"]
        if destination == "default":
            continue
        net = ipaddress.ip_network(destination, strict=False)
        if isinstance(net, ipaddress.IPv4Network) and net.prefixlen > 0:
            nets.append(net)
    return [
        slot
        for slot in range(SLOTS)
        if machine_interface(slot) not in taken
        and not any(net.overlaps(block) for net in nets for block in slot_blocks(slot))
    ]


def slot_blocks(slot: int) -> tuple[ipaddress.IPv4Network, ipaddress.IPv4Network]:
    """The address blocks of a slot: of its fabric and of its Wi-Fi."""
    return (
        ipaddress.IPv4Network(f"198.18.{16 * slot}.0/20"),
        ipaddress.IPv4Network(f"198.19.{16 * slot}.0/20"),
    )


def _cables(spec: LabSpec) -> list[tuple[int, int]]:
    if spec.topology is Topology.PAIR:
        return [(0, 1)]
    return [(number, (number + 1) % spec.nodes) for number in range(spec.nodes)]


def _ends(one: int, other: int, spec: LabSpec, subnet: ipaddress.IPv4Network) -> tuple[Port, ...]:
    """A pair joins first ports; a ring joins each node's second port to the next one's first."""
    first = 0 if spec.topology is Topology.PAIR else 1
    return _fabric_port(one, first, subnet), _fabric_port(other, 0, subnet)


def _fabric_port(node: int, index: int, subnet: ipaddress.IPv4Network) -> Port:
    return Port(
        f"spark{node + 1}",
        FABRIC_INTERFACES[index],
        f"n{node + 1}f{index}",
        _address(subnet, _FIRST_HOST + node),
    )


def _machine_port(slot: int, subnet: ipaddress.IPv4Network) -> Port:
    return Port(None, machine_interface(slot), "machine", _address(subnet, _MACHINE_HOST))


def _fabric_subnet(slot: int, index: int) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network(f"198.18.{16 * slot + index}.0/24")


def _address(subnet: ipaddress.IPv4Network, host: int) -> ipaddress.IPv4Interface:
    return ipaddress.IPv4Interface(f"{subnet.network_address + host}/{subnet.prefixlen}")
