"""Finding the fabric: which addresses are candidates, which networks are chosen, what shape they have."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from itertools import pairwise

import pytest

from glmspark.config.cluster import Runtime, dump_cluster, parse_cluster
from glmspark.nodes.discover import (
    Candidate,
    Fabric,
    candidates,
    choose,
    cluster_of,
    runtime_of,
    to_try,
)
from glmspark.nodes.facts.environment import Environment, environment
from glmspark.nodes.facts.host import HOSTNAME
from glmspark.nodes.facts.network import INTERFACES, LINKS, ROUTES, Interface, Link, Route
from glmspark.nodes.facts.rdma import RDMA
from glmspark.nodes.ssh import Address
from glmspark.nodes.survey import Facts, Reading
from glmspark.nodes.topology import shape
from glmspark.nodes.transport import NodeError
from tests.unit.nodes.sparks import readings

Known = dict[str, list[Candidate]]


def all_answer(known: Known) -> set[tuple[IPv4Address, IPv4Address]]:
    return {(one.address.ip, two.address.ip) for tries in to_try(known).values() for one, two in tries}


def one(
    node: str, interface: str, address: str, speed: int | None = 200000, hca: str | None = None
) -> Candidate:
    return Candidate(node, interface, IPv4Interface(address), speed, hca)


def sparks(count: int) -> dict[str, Facts]:
    return {f"spark{n}": Facts(f"spark{n}", readings(n)) for n in range(1, count + 1)}


def test_candidates_of_a_spark_are_the_fast_ports_alone() -> None:
    facts = sparks(2)
    found = candidates(facts["spark1"])
    assert [(c.interface, str(c.address), c.speed, c.hca) for c in found] == [
        ("enp1s0f0np0", "10.10.1.1/24", 200000, "rocep1s0f0"),
        ("enP2p1s0f0np0", "10.10.2.1/24", 200000, "roceP2p1s0f0"),
    ]


@pytest.mark.parametrize(
    ("interface", "route", "wireless"),
    [
        (
            Interface(
                "docker0", "", 1500, up=True, addresses=(IPv4Interface("172.17.0.1/16"),), kind="bridge"
            ),
            "",
            False,
        ),
        (Interface("x0", "", 1500, up=False, addresses=(IPv4Interface("10.0.0.1/24"),)), "", False),
        (Interface("x0", "", 1500, up=True, addresses=(IPv4Interface("10.0.0.1/24"),)), "x0", False),
        (Interface("x0", "", 1500, up=True, addresses=(IPv4Interface("10.0.0.1/24"),)), "", True),
        (Interface("x0", "", 1500, up=True, addresses=(IPv4Interface("10.0.0.1/32"),)), "", False),
        (Interface("x0", "", 1500, up=True, addresses=()), "", False),
    ],
)
def test_what_is_never_fabric(interface: Interface, route: str, wireless: bool) -> None:
    facts = Facts(
        "n",
        {
            INTERFACES.name: Reading((interface,)),
            ROUTES.name: Reading((Route(IPv4Network("0.0.0.0/0"), route),) if route else ()),
            LINKS.name: Reading((Link("x0", 1000, wireless=wireless, device=""),)),
            RDMA.name: Reading(()),
        },
    )
    assert candidates(facts) == []


def test_an_address_that_two_nodes_have_is_not_tried() -> None:
    known = {"a": [one("a", "br", "172.18.0.1/16")], "b": [one("b", "br", "172.18.0.1/16")]}
    assert to_try(known) == {"a": [], "b": []}


def test_two_sparks_are_a_pair_with_both_halves_listed() -> None:
    facts = sparks(2)
    known = {name: candidates(found) for name, found in facts.items()}
    fabric = choose(list(facts), known, all_answer(known), facts)
    assert fabric.shape == "pair"
    assert fabric.notes == ()
    assert [c.hca for c in fabric.links["spark2"]] == ["rocep1s0f0", "roceP2p1s0f0"]


def test_a_half_without_an_address_is_noted() -> None:
    facts = sparks(2)
    known = {name: candidates(found)[:1] for name, found in facts.items()}
    fabric = choose(list(facts), known, all_answer(known), facts)
    assert len(fabric.notes) == 2
    assert "enP2p1s0f0np0 is the other PCIe half" in fabric.notes[0]


def ring(count: int) -> Known:
    """Cables i -- i+1, each a network of its own."""
    known: Known = {f"n{i}": [] for i in range(count)}
    for i, (left, right) in enumerate(pairwise([*known, "n0"])):
        known[left].append(one(left, "p1", f"10.0.{i}.1/24", hca="r1"))
        known[right].append(one(right, "p0", f"10.0.{i}.2/24", hca="r0"))
    return known


@pytest.mark.parametrize("count", [3, 4, 8])
def test_a_ring(count: int) -> None:
    known = ring(count)
    fabric = choose(list(known), known, all_answer(known))
    assert fabric.shape == "ring"
    assert all(len(found) == 2 for found in fabric.links.values())
    assert bool(fabric.notes) == (count >= 4)


def test_a_ring_with_one_cable_pulled_is_a_line() -> None:
    known = ring(4)
    answered = {
        pair
        for pair in all_answer(known)
        if not {IPv4Address("10.0.0.1"), IPv4Address("10.0.0.2")} & set(pair)
    }
    fabric = choose(list(known), known, answered)
    assert fabric.shape == "line"
    assert "pipeline layouts only" in fabric.notes[-1]


def test_a_switch() -> None:
    known = {f"n{i}": [one(f"n{i}", "p0", f"10.0.0.{i + 1}/24", 10000)] for i in range(4)}
    fabric = choose(list(known), known, all_answer(known))
    assert fabric.shape == "switch"


def test_one_direction_is_not_enough() -> None:
    known = {"a": [one("a", "p", "10.0.0.1/24")], "b": [one("b", "p", "10.0.0.2/24")]}
    with pytest.raises(NodeError, match="no network connects the nodes") as caught:
        choose(["a", "b"], known, {(IPv4Address("10.0.0.1"), IPv4Address("10.0.0.2"))})
    assert "a: p 10.0.0.1/24" in (caught.value.seen or "")
    assert "192.168.100.11/24" in (caught.value.next or "")


def test_the_fast_network_is_chosen_over_the_slow_one() -> None:
    known = {
        f"n{i}": [
            one(f"n{i}", "lan", f"192.168.5.{i + 1}/24", 1000),
            one(f"n{i}", "fast", f"10.0.0.{i + 1}/24"),
        ]
        for i in range(3)
    }
    fabric = choose(list(known), known, all_answer(known))
    assert {c.interface for found in fabric.links.values() for c in found} == {"fast"}


def test_rdma_is_chosen_over_a_plain_network_of_the_same_speed() -> None:
    known = {
        f"n{i}": [
            one(f"n{i}", "plain", f"10.1.0.{i + 1}/24"),
            one(f"n{i}", "roce", f"10.0.0.{i + 1}/24", hca="mlx5_0"),
        ]
        for i in range(2)
    }
    fabric = choose(list(known), known, all_answer(known))
    assert {c.interface for found in fabric.links.values() for c in found} == {"roce"}


def test_speeds_that_nobody_names_do_not_matter() -> None:
    known = {f"n{i}": [one(f"n{i}", "veth", f"10.0.0.{i + 1}/24", None)] for i in range(3)}
    assert choose(list(known), known, all_answer(known)).shape == "switch"


def test_alone() -> None:
    assert choose(["a"], {"a": []}, set()) == Fabric({"a": ()}, "alone")


@pytest.mark.parametrize(
    ("members", "names", "wanted"),
    [
        ({1: {"a", "b"}, 2: {"c", "d"}}, "abcd", ""),
        ({1: {"a", "b"}, 2: {"a", "c"}, 3: {"a", "d"}}, "abcd", ""),
        ({1: {"a", "b"}, 2: {"b", "c"}}, "abc", "line"),
        ({1: {"a", "b"}, 2: {"b", "c"}, 3: {"c", "a"}}, "abc", "ring"),
        ({1: {"a", "b", "c"}}, "abc", "switch"),
        ({}, "ab", ""),
    ],
)
def test_shapes(members: dict[object, set[str]], names: str, wanted: str) -> None:
    assert shape(members, list(names)) == wanted


def test_the_file_written_is_one_that_is_read() -> None:
    facts = sparks(2)
    for number, name in enumerate(facts):
        facts[name] = facts[name].with_(
            {HOSTNAME.name: Reading("spark-3BEE.local" if number else "spark-3bee")}
        )
    known = {name: candidates(found) for name, found in facts.items()}
    fabric = choose(list(facts), known, all_answer(known), facts)
    where = {
        "spark1": Address("192.168.1.11", user="me"),
        "spark2": Address("192.168.1.12", user="me", port=2222),
    }
    written = cluster_of(where, facts, fabric, Runtime(image="glmspark:1"))
    assert parse_cluster(dump_cluster(written), "cluster.yaml") == written
    assert [node.name for node in written.nodes] == ["spark-3bee", "spark-3bee-2"]
    assert written.ssh.user == "me"
    assert [written.reach(node).port for node in written.nodes] == [None, 2222]
    assert [link.hca for link in written.nodes[0].fabric] == ["rocep1s0f0", "roceP2p1s0f0"]


@pytest.mark.parametrize(
    ("found", "kind", "why"),
    [
        ((("0.33.0", "1"), ("0.33.0", "1")), "venv", "every node has vLLM 0.33.0 there"),
        ((("0.33.0", "1"), None), "docker", "spark2 has no engine at /v"),
        ((("0.33.0", "1"), ("0.33.0", "2")), "docker", "spark2 has glmspark 2 at /v, this is 1"),
        ((("0.33.0", "1"), ("0.32.0", "1")), "docker", "engines differ: vLLM 0.32.0, 0.33.0"),
    ],
)
def test_what_ranks_run_in(found: tuple[tuple[str, str] | None, ...], kind: str, why: str) -> None:
    facts = sparks(2)
    for name, versions in zip(facts, found, strict=True):
        reading = Reading(None, "not there") if versions is None else Reading(Environment(*versions))
        facts[name] = facts[name].with_({environment("/v").name: reading})
    runtime, said = runtime_of(facts, "/v", "1", image="glmspark:1")
    assert (runtime.kind, said) == (kind, why)
    assert (runtime.venv, runtime.image) == (("/v", None) if kind == "venv" else (None, "glmspark:1"))


def test_the_environment_is_asked_with_its_own_python() -> None:
    fact = environment("/v")
    assert fact.command[:4] == ("env", "VLLM_LOGGING_LEVEL=ERROR", "/v/bin/python", "-c")
    assert fact.parse('a warning\n{"vllm": "0.33.0", "glmspark": "1"}\n') == Environment("0.33.0", "1")
    for text in ("", "[]", '{"vllm": "1"}', "x"):
        with pytest.raises(ValueError, match=r".*"):
            fact.parse(text)
