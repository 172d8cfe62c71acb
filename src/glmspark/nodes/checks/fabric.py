"""The fabric: every link of cluster.yaml as it is on its node, and every pair of addresses in one network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from glmspark.config import cluster as config
from glmspark.nodes.checks import Judge, Look, Verdict
from glmspark.nodes.facts import Fact, paths
from glmspark.nodes.facts.network import INTERFACES, LINKS, ROUTES, Interface
from glmspark.nodes.facts.network import Link as Hardware
from glmspark.nodes.facts.rdma import RDMA, RdmaPort
from glmspark.nodes.survey import Facts
from glmspark.nodes.topology import remark, shape


@dataclass(frozen=True)
class Pair:
    """Two links in one network: packets go from `source` on `node` to `destination` on `other`."""

    node: str
    other: str
    interface: str
    source: str
    destination: str

    @property
    def way(self) -> Fact[paths.Way]:
        """The fact which way packets go."""
        return paths.way(self.source, self.destination)

    @property
    def reached(self) -> Fact[str]:
        """The fact whether the other side answers."""
        return paths.reached(self.destination)


def pairs(cluster: config.Cluster, node: config.Node) -> list[Pair]:
    """The pairs that start on a node, in the order of the file.

    In a network shared by several links of both nodes (both halves of a port), each link goes with the
    other node's link of the same place in the list.
    """
    found = []
    for other in cluster.nodes:
        if other.name == node.name:
            continue
        for link in node.fabric:
            mine = [one for one in node.fabric if one.address.network == link.address.network]
            theirs = [one for one in other.fabric if one.address.network == link.address.network]
            if theirs:
                peer = theirs[min(mine.index(link), len(theirs) - 1)]
                found.append(
                    Pair(node.name, other.name, link.interface, str(link.address.ip), str(peer.address.ip))
                )
    return found


def pair_facts(cluster: config.Cluster, facts: Facts) -> list[Fact[Any]]:
    """What to ask a node about its pairs; whether large packets pass needs the interface's MTU first."""
    node = cluster.node(facts.node)
    if node is None:
        return []
    mtu = {one.name: one.mtu for one in facts.get(INTERFACES) or ()}
    asked: list[Fact[Any]] = []
    for pair in pairs(cluster, node):
        asked += [pair.way, pair.reached]
        if pair.interface in mtu:
            asked.append(paths.carries(pair.source, pair.destination, mtu[pair.interface]))
    return list({fact.name: fact for fact in asked}.values())


def links(look: Look) -> Iterator[Verdict]:
    """Every link of the file is there as the file says, and is not the way to the outside."""
    for node, facts in _known(look):
        interfaces = facts.get(INTERFACES)
        if interfaces is None:
            yield Judge("fabric", node.name).unread(facts, INTERFACES)
            continue
        by_name = {one.name: one for one in interfaces}
        outside = {route.interface for route in facts.get(ROUTES) or () if route.default}
        hardware = {one.name: one for one in facts.get(LINKS) or ()}
        for link in node.fabric:
            judge = Judge(f"fabric {link.interface}", node.name)
            yield _link(judge, link, by_name, outside, hardware.get(link.interface))


def _link(
    judge: Judge,
    link: config.Link,
    interfaces: dict[str, Interface],
    outside: set[str],
    hardware: Hardware | None,
) -> Verdict:
    interface = interfaces.get(link.interface)
    address = str(link.address)
    if interface is None:
        holder = next((i.name for i in interfaces.values() if address in map(str, i.addresses)), None)
        others = ", ".join(sorted(name for name, one in interfaces.items() if not one.loopback))
        hint = f"{holder} has that address: correct cluster.yaml" if holder else "run `glmspark init` again"
        return judge.blocked(f"there is no such interface; there are {others}", hint)
    if not interface.up:
        return judge.blocked(
            "no carrier", f"check the cable; then on the node: sudo ip link set {link.interface} up"
        )
    if address not in map(str, interface.addresses):
        has = ", ".join(map(str, interface.addresses)) or "none"
        return judge.blocked(
            f"it has not the address {address}; it has {has}",
            "set it (netplan), or correct cluster.yaml; for now: "
            f"sudo ip address add {address} dev {link.interface}",
        )
    if hardware is not None and hardware.wireless:
        return judge.blocked("this is Wi-Fi", "use the ConnectX-7 ports: run `glmspark init` again")
    if link.interface in outside:
        return judge.blocked(
            "the default route goes over it: losing the outside would stop the model",
            "use another interface: run `glmspark init` again",
        )
    speed = hardware.speed if hardware is not None else None
    seen = f"{address}, MTU {interface.mtu}" + (f", {_rate(speed)}" if speed else "")
    if speed is not None and speed < 10_000:
        return judge.slow(
            f"{seen}: decoding across nodes waits for it", "use the 200 Gbit/s ports or at least 10 Gbit/s"
        )
    return judge.ok(seen)


def _rate(speed: int) -> str:
    return f"{speed / 1000:g} Gbit/s" if speed >= 1000 else f"{speed} Mbit/s"


def speeds(look: Look) -> Iterator[Verdict]:
    """The links of one network run at one speed."""
    by_network: dict[str, dict[str, int]] = {}
    for node, facts in _known(look):
        hardware = {one.name: one.speed for one in facts.get(LINKS) or ()}
        for link in node.fabric:
            speed = hardware.get(link.interface)
            if speed is not None:
                by_network.setdefault(str(link.address.network), {})[f"{node.name} {link.interface}"] = speed
    for network, found in by_network.items():
        if len(set(found.values())) > 1:
            slowest = min(found.values())
            which = ", ".join(name for name, speed in found.items() if speed == slowest)
            yield Judge("link speed").slow(
                f"in {network} {which} runs at {_rate(slowest)}, others at {_rate(max(found.values()))}",
                "check cable and switch port; force the port's speed where negotiation stops early",
            )


def rdma(look: Look) -> Iterator[Verdict]:
    """Each HCA of the file is active, belongs to its interface and has a RoCE v2 GID of its address."""
    for node, facts in _known(look):
        named = [link for link in node.fabric if link.hca is not None]
        if not named:
            continue
        ports = facts.get(RDMA)
        if ports is None:
            yield Judge("RDMA", node.name).unread(facts, RDMA)
            continue
        by_device = {one.device: one for one in ports}
        for link in named:
            yield _hca(Judge(f"RDMA {link.hca}", node.name), link, by_device)
        yield from _halves(node, facts, ports)


def _hca(judge: Judge, link: config.Link, by_device: dict[str, RdmaPort]) -> Verdict:
    port = by_device.get(link.hca or "")
    if port is None:
        there = ", ".join(sorted(by_device)) or "none"
        return judge.blocked(f"there is no such device; there are {there}", "run `glmspark init` again")
    if not port.active:
        return judge.blocked(
            f"{port.state}, {port.physical}", f"check the cable of {port.interface or link.interface}"
        )
    if port.interface and port.interface != link.interface:
        return judge.blocked(
            f"it belongs to {port.interface}, not {link.interface}", "run `glmspark init` again"
        )
    address = str(link.address.ip)
    gid = port.gid_of(address)
    if gid is None:
        return judge.blocked(
            f"no RoCE v2 GID has the address {address}",
            f"set the address anew: sudo ip address replace {link.address} dev {link.interface}",
        )
    if link.gid_index is not None and link.gid_index != gid:
        return judge.blocked(
            f"the GID of {address} is at index {gid}, cluster.yaml says {link.gid_index}",
            "leave gid_index out: it is looked up at every start",
        )
    return judge.ok(f"active, {port.rate:g} Gbit/s, GID {gid}")


def _halves(node: config.Node, facts: Facts, ports: tuple[RdmaPort, ...]) -> Iterator[Verdict]:
    """A port reaches its speed only with both of its PCIe halves in use."""
    listed = {link.interface for link in node.fabric}
    active = {port.interface for port in ports if port.active}
    for link in node.fabric:
        for twin in twins(link.interface, facts):
            if twin in active and twin not in listed:
                yield Judge(f"RDMA {link.hca}", node.name).slow(
                    f"{twin}, the other PCIe half of the same port, is active but not in cluster.yaml: half "
                    "of the bandwidth is left",
                    "give it an address and run `glmspark init` again",
                )


def twins(interface: str, facts: Facts) -> list[str]:
    """Interfaces of the same physical port: RDMA too, same place on the bus, another PCIe domain.

    The place alone does not tell: a Spark's Ethernet and Wi-Fi chips sit at 01:00.0 of domains of their own.
    """
    place = {one.name: one.device for one in facts.get(LINKS) or ()}
    rdma = {port.interface for port in facts.get(RDMA) or ()}
    domain, _, rest = place.get(interface, "").partition(":")
    return sorted(
        name
        for name in rdma & set(place)
        if interface in rdma
        and rest
        and place[name].partition(":")[2] == rest
        and place[name].partition(":")[0] != domain
    )


def cabling(look: Look) -> Iterator[Verdict]:
    """The links of the file hang together, in a shape that ranks can use."""
    if look.cluster is None or len(look.cluster.nodes) < 2:
        return
    members: dict[object, set[str]] = {}
    for node in look.cluster.nodes:
        for link in node.fabric:
            members.setdefault(link.address.network, set()).add(node.name)
    names = [node.name for node in look.cluster.nodes]
    form = shape(members, names)
    said = remark(form, len(names))
    judge = Judge("cabling")
    if not form:
        networks = "; ".join(f"{net}: {', '.join(sorted(found))}" for net, found in members.items())
        yield judge.blocked(
            f"neither pair, ring, line nor switch: {networks}",
            "give every node a link to its neighbours, then run `glmspark init` again",
        )
    elif said:
        yield judge.slow(f"{form} of {len(names)}: {said}", "choose a layout and an NCCL build for it")
    else:
        yield judge.ok(f"{form} of {len(names)}")


def reach(look: Look) -> Iterator[Verdict]:
    """Every pair of addresses in one network answers both ways, over its own link and with whole packets."""
    if look.cluster is None:
        return
    by_name = dict(look.facts)
    for node, facts in _known(look):
        for pair in pairs(look.cluster, node):
            judge = Judge(f"path to {pair.other} {pair.destination}", pair.node)
            yield _path(judge, pair, facts, by_name.get(pair.other), look.cluster)


def _path(judge: Judge, pair: Pair, facts: Facts, other: Facts | None, cluster: config.Cluster) -> Verdict:
    way, answer = facts.get(pair.way), facts.get(pair.reached)
    if way is None:
        return judge.blocked(
            facts.problem(pair.way) or "no route", f"set an address on {pair.interface} (netplan)"
        )
    if way.interface != pair.interface or way.gateway is not None:
        over = f"over {way.interface}" + (f" through {way.gateway}" if way.gateway else "")
        return judge.blocked(
            f"packets from {pair.source} would go {over}, not over {pair.interface}",
            "give each fabric link its own network, or add a route from that address",
        )
    if answer is None:
        return judge.unread(facts, pair.reached)
    if answer:
        return judge.blocked(
            f"no answer over {pair.interface}: {answer}", "check cable, address and firewall on both sides"
        )
    mine = _mtu(facts, pair.interface)
    theirs = _mtu_of_address(other, pair.destination, cluster.node(pair.other))
    if mine is not None and theirs is not None and mine != theirs:
        return judge.blocked(
            f"MTU {mine} here and {theirs} there: large packets are lost without a word",
            f"set both to the same: sudo ip link set {pair.interface} mtu {max(mine, theirs)}",
        )
    if mine is None:
        return judge.ok(f"answers over {pair.interface}")
    whole = paths.carries(pair.source, pair.destination, mine)
    passed = facts.get(whole)
    if passed is False:
        return judge.blocked(
            f"packets of {mine} bytes, the MTU of both ends, do not arrive",
            "raise the switch's MTU, or lower that of both ends",
        )
    tried = f", packets of {mine} bytes pass" if passed else f", MTU {mine} untried"
    return judge.ok(f"answers over {pair.interface}{tried}")


def _mtu(facts: Facts, interface: str) -> int | None:
    return next((one.mtu for one in facts.get(INTERFACES) or () if one.name == interface), None)


def _mtu_of_address(facts: Facts | None, address: str, node: config.Node | None) -> int | None:
    if facts is None or node is None:
        return None
    link = next((one for one in node.fabric if str(one.address.ip) == address), None)
    return None if link is None else _mtu(facts, link.interface)


def _known(look: Look) -> Iterator[tuple[config.Node, Facts]]:
    for node in look.cluster.nodes if look.cluster is not None else ():
        facts = look.facts.get(node.name)
        if facts is not None:
            yield node, facts
