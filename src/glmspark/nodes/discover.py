"""The fabric of nodes, found by which addresses reach which: networks count, names of interfaces do not.

First what is a candidate on each node, then which pairs in one network really answer, then which networks
make the fabric and what shape it has. All of it pure; asking the nodes is `look_for_fabric`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glmspark.config.cluster import Cluster, Link, Node, Runtime, SshOptions
from glmspark.nodes import node as nodes
from glmspark.nodes.checks.fabric import twins
from glmspark.nodes.facts import Fact, paths
from glmspark.nodes.facts.docker import ENGINE
from glmspark.nodes.facts.environment import environment
from glmspark.nodes.facts.everything import EVERYTHING
from glmspark.nodes.facts.host import HOSTNAME
from glmspark.nodes.facts.network import INTERFACES, LINKS, ROUTES
from glmspark.nodes.facts.rdma import RDMA
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.ssh import Address
from glmspark.nodes.survey import Facts, survey
from glmspark.nodes.topology import remark, shape
from glmspark.nodes.transport import NodeError

# Made by Docker, Kubernetes, VPNs: never a cable between machines. (veth stays: a lab's cables are such.)
_VIRTUAL = {"bridge", "dummy", "tun", "wireguard", "vxlan", "ifb", "ipip", "sit", "gre", "geneve", "ipvlan"}


@dataclass(frozen=True)
class Candidate:
    """An address of a node that may belong to the fabric. speed: Mbit/s. hca: its active RDMA device."""

    node: str
    interface: str
    address: ipaddress.IPv4Interface
    speed: int | None = None
    hca: str | None = None


@dataclass(frozen=True)
class Fabric:
    """What was found. links: by node, the ranks' own first. shape: pair, ring, switch, line or alone.

    notes: what people should know of it, one sentence each.
    """

    links: Mapping[str, tuple[Candidate, ...]]
    shape: str
    notes: tuple[str, ...] = field(default=())


def candidates(facts: Facts) -> list[Candidate]:
    """Addresses of a node that may be fabric: up, wired, not loopback or virtual, not the way outside."""
    outside = {route.interface for route in facts.get(ROUTES) or () if route.default}
    hardware = {one.name: one for one in facts.get(LINKS) or ()}
    hcas = {port.interface: port.device for port in facts.get(RDMA) or () if port.active and port.interface}
    found = []
    for one in facts.get(INTERFACES) or ():
        link = hardware.get(one.name)
        wireless = link is not None and link.wireless
        if not one.up or one.loopback or one.kind in _VIRTUAL or one.name in outside or wireless:
            continue
        for address in one.addresses:
            if address.network.prefixlen <= 31:
                speed = link.speed if link is not None else None
                found.append(Candidate(facts.node, one.name, address, speed, hcas.get(one.name)))
    return found


def to_try(known: Mapping[str, Sequence[Candidate]]) -> dict[str, list[tuple[Candidate, Candidate]]]:
    """Pairs of addresses in one network on two nodes, by the node they start from.

    An address that two nodes have (Docker's default bridge, a cloned machine) leads nowhere.
    """
    everywhere = [one.address.ip for found in known.values() for one in found]
    single = {address for address in everywhere if everywhere.count(address) == 1}
    tries: dict[str, list[tuple[Candidate, Candidate]]] = {name: [] for name in known}
    for name, mine in known.items():
        for other, theirs in known.items():
            if other == name:
                continue
            tries[name] += [
                (one, two)
                for one in mine
                for two in theirs
                if one.address.network == two.address.network
                and one.address.ip in single
                and two.address.ip in single
            ]
    return tries


def choose(
    names: Sequence[str],
    known: Mapping[str, Sequence[Candidate]],
    answered: set[tuple[ipaddress.IPv4Address, ipaddress.IPv4Address]],
    facts: Mapping[str, Facts] | None = None,
) -> Fabric:
    """The fabric: networks whose addresses answer both ways; RDMA before others, fast before slow.

    answered: pairs (from, to) that did. Raises NodeError where more than one node have none in common.
    """
    if len(names) == 1:
        return Fabric({names[0]: ()}, "alone")
    all_of = [one for name in names for one in known[name]]
    networks: dict[ipaddress.IPv4Network, list[Candidate]] = {}
    for one in all_of:
        others = [
            two
            for two in all_of
            if two.node != one.node
            and two.address.network == one.address.network
            and {(one.address.ip, two.address.ip), (two.address.ip, one.address.ip)} <= answered
        ]
        if others:
            networks.setdefault(one.address.network, []).append(one)
    for picked in _preferences(networks):
        members: dict[object, set[str]] = {net: {one.node for one in picked[net]} for net in picked}
        form = shape(members, names)
        if form:
            links = {
                name: tuple(
                    sorted(
                        (one for found in picked.values() for one in found if one.node == name),
                        key=lambda one: (
                            one.address.network.is_link_local,
                            -(one.speed or 0),
                            int(one.address),
                        ),
                    )
                )
                for name in names
            }
            return Fabric(links, form, tuple(_notes(form, links, facts or {})))
    raise _nothing(names, known)


def _preferences(
    networks: Mapping[ipaddress.IPv4Network, list[Candidate]],
) -> list[dict[ipaddress.IPv4Network, list[Candidate]]]:
    """Sets of networks to try, the best first: with RDMA on all ends, then by speed, then all there are."""
    rdma = {net: found for net, found in networks.items() if all(one.hca for one in found)}
    sets = [rdma]
    speeds = sorted({_speed(found) for found in networks.values()}, reverse=True)
    sets += [{net: found for net, found in networks.items() if _speed(found) == speed} for speed in speeds]
    sets += [{net: found for net, found in networks.items() if _speed(found) >= speed} for speed in speeds]
    return [one for one in sets if one]


def _speed(found: Sequence[Candidate]) -> int:
    return min((one.speed or 0 for one in found), default=0)


def _notes(form: str, links: Mapping[str, tuple[Candidate, ...]], facts: Mapping[str, Facts]) -> list[str]:
    notes = [said] if (said := remark(form, len(links))) else []
    for name, found in links.items():
        known = facts.get(name, Facts(name, {}))
        listed = {one.interface for one in found}
        carrier = {one.name for one in known.get(INTERFACES) or () if one.up}
        for one in found:
            notes += [
                f"{name}: {twin} is the other PCIe half of {one.interface}'s port and has no address there "
                "that answers: without it half of the bandwidth is left"
                for twin in twins(one.interface, known)
                if twin in carrier and twin not in listed
            ]
        if any(one.hca is None for one in found) and any(one.hca for one in found):
            notes.append(f"{name}: not every link has an RDMA device")
    return notes


def _nothing(names: Sequence[str], known: Mapping[str, Sequence[Candidate]]) -> NodeError:
    seen = "\n".join(
        f"{name}: "
        + (", ".join(f"{one.interface} {one.address}" for one in known[name]) or "no such address")
        for name in names
    )
    return NodeError(
        "no network connects the nodes beside the one to the outside",
        step="find the fabric",
        seen=f"addresses on wired interfaces without the default route:\n{seen}",
        next="give the ports between the nodes addresses in one network (netplan), for example "
        "192.168.100.11/24 and 192.168.100.12/24, then run it again",
    )


def runtime_of(facts: Mapping[str, Facts], prefix: str, version: str, *, image: str) -> tuple[Runtime, str]:
    """What ranks are to run in, and why: the environment at `prefix` where every node has it with the engine
    and this version of glmspark (a shared file system, machines set up alike), else containers of the image.

    The nodes must have been asked for `environment(prefix)`.
    """
    fact = environment(prefix)
    for name, known in facts.items():
        found = known.get(fact)
        if found is None:
            return Runtime(kind="docker", image=image), f"{name} has no engine at {prefix}"
        if found.glmspark != version:
            why = f"{name} has glmspark {found.glmspark} at {prefix}, this is {version}"
            return Runtime(kind="docker", image=image), why
    engines = {found.vllm for known in facts.values() if (found := known.get(fact)) is not None}
    if len(engines) > 1:
        return Runtime(kind="docker", image=image), f"engines differ: vLLM {', '.join(sorted(engines))}"
    return Runtime(kind="venv", venv=prefix), f"every node has vLLM {engines.pop()} there"


def cluster_of(
    where: Mapping[str, Address], facts: Mapping[str, Facts], fabric: Fabric, runtime: Runtime
) -> Cluster:
    """The cluster file's content for what was found. Names are the hosts' own names, made unique."""
    names: dict[str, str] = {}
    for key in where:
        base = re.sub(r"[^a-z0-9-]+", "-", (facts[key].get(HOSTNAME) or "node").lower().split(".")[0]).strip(
            "-"
        )
        name, count = base[:60] or "node", 1
        while name in names.values():
            count += 1
            name = f"{base[:56]}-{count}"
        names[key] = name
    users = {address.user for address in where.values()}
    ports = {address.port for address in where.values()}
    first = next(iter(where.values()))
    ssh = SshOptions(
        user=users.pop() if len(users) == 1 else None,
        port=ports.pop() if len(ports) == 1 else None,
        identity_file=str(first.keys[0]) if first.keys else None,
        known_hosts=str(first.known_hosts) if first.known_hosts else None,
    )
    members = tuple(
        Node(
            name=names[key],
            address=address.host,
            user=address.user if ssh.user != address.user else None,
            port=address.port if ssh.port != address.port else None,
            fabric=tuple(
                Link(interface=one.interface, address=one.address, hca=one.hca) for one in fabric.links[key]
            ),
        )
        for key, address in where.items()
    )
    return Cluster(cluster=1, ssh=ssh, runtime=runtime, nodes=members)


async def look_for_fabric(
    where: Mapping[str, Address],
    *,
    also: Sequence[Fact[Any]] = (),
    said: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, Facts], Fabric]:
    """Ask nodes for facts and try paths between them. Raises NodeError for a node that cannot be reached.

    also: further facts to ask, each of which may take a minute.
    """
    async with Fleet(where) as fleet:
        for error in fleet.lost.values():
            raise error
        said("gathering facts")
        facts: dict[str, Facts] = {}
        for name, result in (await fleet.each(lambda node: survey(node, EVERYTHING))).items():
            if isinstance(result, NodeError):
                raise result
            facts[name] = result
        known = {name: candidates(facts[name]) for name in where}
        tries = to_try(known)
        said("trying paths between nodes")
        answered: set[tuple[ipaddress.IPv4Address, ipaddress.IPv4Address]] = set()

        async def attempt(node: nodes.Node) -> Facts:
            asked: list[Fact[Any]] = []
            for one, two in tries[node.host]:
                asked.append(paths.way(str(one.address.ip), str(two.address.ip)))
                asked.append(paths.reached(str(two.address.ip)))
            return await survey(node, list({fact.name: fact for fact in asked}.values()), timeout=180)

        for name, found in (await fleet.each(attempt)).items():
            if isinstance(found, NodeError):
                raise found
            own = {one.interface for one in known[name]}
            for one, two in tries[name]:
                way = found.get(paths.way(str(one.address.ip), str(two.address.ip)))
                answer = found.get(paths.reached(str(two.address.ip)))
                if way is not None and way.gateway is None and way.interface in own and answer == "":
                    answered.add((one.address.ip, two.address.ip))
        if also:
            said("looking for the engine")
            slow = await fleet.each(lambda node: survey(node, also, each=90, timeout=120))
            for name, result in slow.items():
                if isinstance(result, NodeError):
                    raise result
                facts[name] = facts[name].with_(result.readings())
    return facts, choose(list(where), known, answered, facts)


def has_docker(facts: Mapping[str, Facts]) -> list[str]:
    """Nodes whose Docker Engine answers."""
    return [
        name for name, known in facts.items() if (engine := known.get(ENGINE)) is not None and engine.version
    ]
