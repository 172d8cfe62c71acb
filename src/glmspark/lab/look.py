"""What stands of a lab and how it does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from glmspark.lab import commands
from glmspark.lab.record import LabHome, LabRecord, NodeRecord, State
from glmspark.lab.run import Runner
from glmspark.lab.services import docker_version, ssh_banner
from glmspark.lab.wiring import Port
from glmspark.nodes import processes
from glmspark.nodes.processes import boot_id


@dataclass(frozen=True)
class LinkState:
    """One link of a node. name: NODE:INTERFACE. cut: whether its cable is pulled."""

    name: str
    interface: str
    address: str
    network: str
    wifi: bool
    cut: bool


@dataclass(frozen=True)
class NodeState:
    """One node. address: where SSH reaches it. sshd: whether it answers there. docker: the Engine's version.

    pid: process 1 of the node, as the machine sees it.
    """

    name: str
    alive: bool
    pid: int | None
    address: str
    sshd: bool
    docker: str | None
    memory: int
    links: tuple[LinkState, ...]

    @property
    def well(self) -> bool:
        """Whether everything that was started answers, or would but for a pulled cable."""
        return self.alive and self.docker is not None and (self.sshd or any(link.cut for link in self.links))

    def to_json(self) -> dict[str, Any]:
        """The state as JSON data."""
        return asdict(self) | {"links": [asdict(link) for link in self.links]}


@dataclass(frozen=True)
class LabState:
    """The whole lab. state: starting, up, stopping, or broken where a holder has died."""

    state: str
    record: LabRecord
    nodes: tuple[NodeState, ...]
    cluster: str

    @property
    def well(self) -> bool:
        """Whether all of it is up."""
        return self.state == State.UP and all(node.well for node in self.nodes)

    def to_json(self) -> dict[str, Any]:
        """The state as JSON data."""
        return {
            "state": self.state,
            "created": self.record.created,
            **self.record.spec.to_json(),
            "machine": {
                "interface": self.record.wiring.machine.interface,
                "address": str(self.record.wiring.machine.address),
            },
            "cluster": self.cluster,
            "nodes": [node.to_json() for node in self.nodes],
        }


def is_whole(record: LabRecord) -> bool:
    """Whether a lab was finished in this boot and every process that holds it lives."""
    known = record.processes()
    return (
        record.state is State.UP
        and record.boot == boot_id()
        and len(known) == 1 + 2 * len(record.nodes)
        and all(processes.is_alive(one) for one in known)
    )


def parse_links(text: str) -> dict[str, bool]:
    """Interface -> whether it is taken up, of what `ip -json link show` prints. ValueError otherwise."""
    return {entry["ifname"]: "UP" in entry["flags"] for entry in json.loads(text)}


def look(home: LabHome) -> LabState | None:
    """The state of a lab, None where there is none. StateError where its record is damaged."""
    record = home.read()
    if record is None:
        return None
    whole = is_whole(record)
    state = str(record.state) if record.state is not State.UP or whole else "broken"
    up = _links_up(home, record)
    with ThreadPoolExecutor(max_workers=8) as pool:
        nodes = tuple(pool.map(lambda node: _node(home, record, node, up), record.nodes))
    return LabState(state, record, nodes, str(home.cluster_file))


def _links_up(home: LabHome, record: LabRecord) -> dict[str, bool]:
    if record.switch is None or not processes.is_alive(record.switch):
        return {}
    argv = commands.enter_switch(record.switch.pid, commands.list_links())
    code, out, _ = Runner(home).try_run(argv, step="look at the cables")
    return parse_links(out) if code == 0 else {}


def _node(home: LabHome, record: LabRecord, node: NodeRecord, up: Mapping[str, bool]) -> NodeState:
    wiring = record.wiring
    init = node.init if node.init is not None and processes.is_alive(node.init) else None
    address = str(wiring.reached_at(node.name))
    links = tuple(
        LinkState(
            port.name, port.interface, str(port.address), network.name, network.wifi, not _is_up(port, up)
        )
        for network in wiring.networks
        for port in network.ports
        if port.node == node.name
    )
    if init is None:
        return NodeState(node.name, False, None, address, False, None, 0, links)
    stats = processes.all_stats()
    memory = sum(processes.memory(stat.pid) for stat in processes.descendants([init.pid], stats))
    return NodeState(
        name=node.name,
        alive=True,
        pid=init.pid,
        address=address,
        sshd=ssh_banner(address) is not None,
        docker=docker_version(Runner(home, node.name), init.pid),
        memory=memory,
        links=links,
    )


def _is_up(port: Port, up: Mapping[str, bool]) -> bool:
    return up.get(port.far, False)
