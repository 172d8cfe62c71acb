import ipaddress
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.lab.spec import LabSpec, Topology
from glmspark.lab.wiring import POOL, SLOTS, Wiring, free_slots, slot_blocks, wire

SPECS = [
    *(LabSpec(nodes) for nodes in range(1, 9)),
    *(LabSpec(nodes, Topology.RING) for nodes in range(3, 9)),
    LabSpec(2, Topology.PAIR),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.topology}-{spec.nodes}")
@pytest.mark.parametrize("slot", [0, 7, SLOTS - 1])
def test_every_wiring(spec, slot):
    wiring = wire(spec, slot)
    ports = list(wiring.ports())
    addresses = [port.address.ip for port in ports]
    assert len(set(addresses)) == len(addresses)
    assert all(any(address in block for block in slot_blocks(slot)) for address in addresses)
    assert all(block.subnet_of(POOL) for block in slot_blocks(slot))
    assert len({port.far for port in ports}) == len(ports)
    # What a kernel takes: names of interfaces are at most 15 characters.
    assert all(len(name) <= 15 for port in ports for name in (port.far, port.interface))
    assert all(len(network.bridge) <= 15 for network in wiring.networks)
    for node in wiring.nodes:
        interfaces = [port.interface for port in ports if port.node == node]
        assert len(set(interfaces)) == len(interfaces)
        assert wiring.wifi_port(node).interface not in [port.interface for port in wiring.fabric(node)]
    assert len([port for port in ports if port.node is None]) == 1


def test_slots_have_no_address_in_common():
    blocks = [block for slot in range(SLOTS) for block in slot_blocks(slot)]
    assert len(set(blocks)) == 2 * SLOTS
    assert sum(block.num_addresses for block in blocks) == POOL.num_addresses


def test_a_switch_is_one_network_and_the_machine_is_on_it():
    wiring = wire(LabSpec(3), 0)
    assert [str(port.address) for node in wiring.nodes for port in wiring.fabric(node)] == [
        "198.18.0.11/24",
        "198.18.0.12/24",
        "198.18.0.13/24",
    ]
    assert str(wiring.machine.address) == "198.18.0.2/24"
    assert str(wiring.reached_at("spark2")) == "198.18.0.12"
    assert wiring.routes("spark1") == []


def test_a_pair_is_one_cable_and_the_machine_is_on_the_wifi():
    wiring = wire(LabSpec(2, Topology.PAIR), 1)
    assert [port.interface for node in wiring.nodes for port in wiring.fabric(node)] == ["enp1s0f0np0"] * 2
    assert str(wiring.reached_at("spark2")) == "198.19.16.12"
    assert wiring.routes("spark1") == []
    assert [port.name for port in wiring.select("spark1-spark2")] == [
        "spark1:enp1s0f0np0",
        "spark2:enp1s0f0np0",
    ]


def test_a_ring_of_three_reaches_far_ports_through_their_own_node():
    wiring = wire(LabSpec(3, Topology.RING), 0)
    assert [(str(route.to), str(route.via), route.interface) for route in wiring.routes("spark1")] == [
        ("198.18.1.12", "198.18.0.12", "enp1s0f1np1"),
        ("198.18.1.13", "198.18.2.13", "enp1s0f0np0"),
    ]


def deliver(wiring: Wiring, start: str, to: ipaddress.IPv4Address) -> list[str]:
    """The nodes a packet passes on its way, following what each knows. Fails where one knows no way."""
    owner = {port.address.ip: port.node for port in wiring.ports()}
    path = [start]
    while path[-1] != owner[to]:
        assert len(path) <= len(wiring.nodes), f"{to} is never reached: {path}"
        here = path[-1]
        direct = [port for port in wiring.fabric(here) if to in port.address.network]
        if direct:
            path.append(owner[to])
            continue
        (via,) = [route.via for route in wiring.routes(here) if route.to == to]
        path.append(owner[via])
    return path


@pytest.mark.parametrize("nodes", range(3, 9))
def test_in_a_ring_every_fabric_address_is_reached_the_shorter_way(nodes):
    wiring = wire(LabSpec(nodes, Topology.RING), 3)
    for start in wiring.nodes:
        for end in wiring.nodes:
            for port in wiring.fabric(end):
                path = deliver(wiring, start, port.address.ip)
                around = abs(wiring.nodes.index(start) - wiring.nodes.index(end))
                # A port on the far side of its node may be one step nearer the other way.
                assert len(path) - 1 <= min(around, nodes - around)


def test_names_select_ports():
    wiring = wire(LabSpec(3, Topology.RING), 0)
    assert {port.name for port in wiring.select("spark2")} == {
        "spark2:enp1s0f0np0",
        "spark2:enp1s0f1np1",
        "spark2:wlP9s9",
    }
    assert [port.name for port in wiring.select("spark3:wlP9s9")] == ["spark3:wlP9s9"]
    assert {port.node for port in wiring.select("spark1-spark3")} == {"spark1", "spark3"}
    assert [port.node for port in wiring.select("wifi")] == ["spark1", "spark2", "spark3"]
    assert wiring.select("spark4") == []
    for name in wiring.names():
        assert wiring.select(name)
    assert [port.node for port in wire(LabSpec(2), 0).select("fabric")] == ["spark1", "spark2"]


ROUTES = json.dumps(
    [
        {"dst": "default", "gateway": "192.0.2.1", "dev": "eth0", "flags": []},
        {"dst": "192.0.2.0/24", "dev": "eth0", "scope": "link", "prefsrc": "192.0.2.2", "flags": []},
        {"type": "local", "dst": "127.0.0.0/8", "dev": "lo", "table": "local", "flags": []},
        {"type": "broadcast", "dst": "192.0.2.255", "dev": "eth0", "table": "local", "flags": []},
    ]
)


def test_free_slots():
    assert free_slots(ROUTES, ["lo", "eth0"]) == list(range(SLOTS))
    assert free_slots(ROUTES, ["lo", "glmlab0", "glmlab2"])[:2] == [1, 3]


def test_slots_that_routes_lead_into_are_not_free():
    def with_route(destination: str) -> list[int]:
        return free_slots(json.dumps([*json.loads(ROUTES), {"dst": destination, "dev": "tun0"}]), [])

    assert with_route("198.18.0.0/15") == []
    assert with_route("198.18.0.0/16") == []
    assert with_route("198.18.33.1") == [slot for slot in range(SLOTS) if slot != 2]
    assert with_route("198.19.0.0/20") == list(range(1, SLOTS))
    assert with_route("0.0.0.0/1") == list(range(SLOTS))  # a VPN's half of everything


@given(st.integers(max_value=-1) | st.integers(min_value=SLOTS))
def test_other_slots_do_not_exist(slot):
    with pytest.raises(ValueError, match="slot"):
        wire(LabSpec(1), slot)
