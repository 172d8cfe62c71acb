"""What each rank holds on which node, and what is refused before anything is started."""

from __future__ import annotations

import dataclasses
import ipaddress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.config.cluster import Cluster, parse_cluster
from glmspark.nodes.facts.network import Route
from glmspark.nodes.facts.ports import Listener
from glmspark.nodes.facts.rdma import Gid, RdmaPort
from glmspark.plan import MachineFacts, Plan, PlanError
from glmspark.plan.cluster import choose_nodes, plan_cluster
from glmspark.plan.fabric import all_adjacent, fabric_places, free_port
from glmspark.plan.facts import NodeFacts
from glmspark.plan.ranks import RESERVE_BYTES
from tests.unit.plan.plans import GIB, checkpoint, recipe


def cluster(count: int = 3, *, ring: bool = False, hca: str = "") -> Cluster:
    text = "cluster: 1\nruntime: {image: 'i:1'}\nnodes:\n"
    for i in range(count):
        links = [f"{{interface: fab0, address: 10.0.0.1{i}/24{hca}}}"]
        if ring:
            after, before = i, (i - 1) % count
            links = [
                f"{{interface: right, address: 10.1.{after}.1/24}}",
                f"{{interface: left, address: 10.1.{before}.2/24}}",
            ]
        text += f"  - {{name: spark{i + 1}, address: 192.0.2.{i + 1}, fabric: [{', '.join(links)}]}}\n"
    return parse_cluster(text.encode(), "cluster.yaml")


def facts(one: Cluster, **changes: Any) -> dict[str, NodeFacts]:
    """Every node a machine of its own."""
    return {
        node.name: NodeFacts(MachineFacts(node.name, (0, 1, 2, 3), 16 * GIB, 12 * GIB), node.name, **changes)
        for node in one.nodes
    }


def plan(tmp_path: Path, one: Cluster, known: dict[str, NodeFacts], tp: int, pp: int, **more: Any) -> Plan:
    nodes = choose_nodes(one, tp * pp)
    return plan_cluster(recipe(), checkpoint(tmp_path), nodes, known, tp=tp, pp=pp, **more)


def refused(*arguments: Any, **more: Any) -> PlanError:
    with pytest.raises(PlanError) as caught:
        plan(*arguments, **more)
    return caught.value


def test_each_node_gets_a_rank_with_its_own_address(tmp_path: Path) -> None:
    one = cluster()
    found = plan(tmp_path, one, facts(one), 1, 3, backend="ray")
    assert [(rank.rank, rank.host, rank.address, rank.interface) for rank in found.ranks] == [
        (0, "spark1", "10.0.0.10", "fab0"),
        (1, "spark2", "10.0.0.11", "fab0"),
        (2, "spark3", "10.0.0.12", "fab0"),
    ]
    assert [rank.layers for rank in found.ranks] == [(0, 1), (1, 3), (3, 4)]
    assert [rank.cpus for rank in found.ranks] == [(0, 1, 2, 3)] * 3
    assert (found.backend, found.platform, found.world) == ("ray", "cpu", 3)
    assert (found.ports.master, found.ports.watch, found.ports.engine) == (29500, 29600, 29700)
    assert Plan.from_json(found.to_json()) == found


def test_nodes_of_one_machine_share_its_cores_and_its_memory(tmp_path: Path) -> None:
    one = cluster(2)
    known = {name: dataclasses.replace(found, board="lab") for name, found in facts(one).items()}
    found = plan(tmp_path, one, known, 2, 1)
    assert [rank.cpus for rank in found.ranks] == [(0, 1), (2, 3)]
    both = sum(rank.memory.needed for rank in found.ranks)
    tight = {
        name: dataclasses.replace(
            node, machine=dataclasses.replace(node.machine, memory_available=both + RESERVE_BYTES - 1)
        )
        for name, node in known.items()
    }
    assert refused(tmp_path / "b", one, tight, 2, 1).host == "spark1, spark2"


def test_the_node_that_is_too_small_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    one = cluster(2)
    known = facts(one)
    needed = plan(tmp_path, one, known, 2, 1).ranks[1].memory.needed
    small = dataclasses.replace(
        known["spark2"].machine, memory_available=needed + RESERVE_BYTES - 100 * 2**20
    )
    known["spark2"] = dataclasses.replace(known["spark2"], machine=small)
    error = refused(tmp_path / "b", one, known, 2, 1)
    assert error.host == "spark2"
    assert "100 MiB short" in error.message
    assert "KV cache" in str(error.seen)


@pytest.mark.parametrize(
    ("world", "names", "words"),
    [
        (4, (), "3 nodes are too few for 4 ranks"),
        (2, ("spark1", "spark9"), "no node spark9"),
        (2, ("spark1", "spark1"), "named twice"),
        (2, ("spark1", "spark2", "spark3"), "too many for 2 ranks"),
    ],
)
def test_nodes_that_do_not_do(world: int, names: tuple[str, ...], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        choose_nodes(cluster(), world, names)


def test_the_first_node_named_is_the_head() -> None:
    assert [node.name for node in choose_nodes(cluster(), 2, ("spark3", "spark1"))] == ["spark3", "spark1"]
    assert [node.name for node in choose_nodes(cluster(), 2)] == ["spark1", "spark2"]


def test_tp_that_does_not_divide_the_heads(tmp_path: Path) -> None:
    one = cluster()
    assert "TP 3 does not divide 4 attention heads" in refused(tmp_path, one, facts(one), 3, 1).message


def test_a_stage_begins_with_a_layer_that_has_its_own_indexer(tmp_path: Path) -> None:
    one = cluster(2)
    known = {
        name: dataclasses.replace(found, machine=dataclasses.replace(found.machine, platform="cuda"))
        for name, found in facts(one).items()
    }
    nodes = choose_nodes(one, 2)
    toy = checkpoint(tmp_path, index_topk_pattern="FSSS")
    with pytest.raises(PlanError, match="stage 1 would begin with layer 2, which has no indexer") as caught:
        plan_cluster(recipe(), toy, nodes, known, tp=1, pp=2)
    assert "choose --pp from 1," in str(caught.value.next)
    dense = recipe(engine={"dense_attention": True})
    assert plan_cluster(dense, toy, nodes, known, tp=1, pp=2).platform == "cuda"
    alternate = checkpoint(tmp_path / "b", index_topk_pattern="FSFS")
    assert plan_cluster(recipe(), alternate, nodes, known, tp=1, pp=2).ranks[1].layers == (2, 4)


def test_a_node_whose_gpu_does_not_answer_is_named(tmp_path: Path) -> None:
    one = cluster(2)
    known = facts(one)
    gpu = dataclasses.replace(known["spark1"].machine, platform="cuda")
    known["spark1"] = dataclasses.replace(known["spark1"], machine=gpu)
    assert refused(tmp_path, one, known, 2, 1).host == "spark2"


def test_what_the_recipe_says_it_needs(tmp_path: Path) -> None:
    one = cluster(2)
    toy, nodes = checkpoint(tmp_path), choose_nodes(cluster(2), 2)
    with pytest.raises(PlanError, match="for nodes with a GPU"):
        plan_cluster(recipe(needs={"platform": "cuda"}), toy, nodes, facts(one), tp=2, pp=1)
    with pytest.raises(PlanError, match="names no hca of spark1, spark2"):
        plan_cluster(recipe(needs={"link": "rdma"}), toy, nodes, facts(one), tp=2, pp=1)


def test_a_ring_of_four_has_nodes_that_are_not_neighbours() -> None:
    assert all_adjacent(cluster(3).nodes)
    assert all_adjacent(cluster(3, ring=True).nodes)
    assert not all_adjacent(cluster(4, ring=True).nodes)


def test_a_ring_uses_addresses_that_all_others_have_a_route_to() -> None:
    one = cluster(ring=True)
    known = facts(one)
    with pytest.raises(PlanError, match="has no way to spark1 over the fabric"):
        fabric_places(one.nodes, known)

    def with_route(name: str, network: str, interface: str, default: str = "wifi") -> NodeFacts:
        ways = (
            Route(ipaddress.IPv4Network("0.0.0.0/0"), default, "192.0.2.254"),
            Route(ipaddress.IPv4Network(network), interface, "10.1.9.9"),
        )
        return dataclasses.replace(known[name], routes=ways)

    # right of 1 and left of 2 are one cable (10.1.0), of 2 and 3 10.1.1, of 3 and 1 10.1.2
    ways = {
        "spark1": with_route("spark1", "10.1.1.0/24", "right"),
        "spark2": with_route("spark2", "10.1.2.0/24", "right"),
        "spark3": with_route("spark3", "10.1.0.0/24", "right"),
    }
    found = fabric_places(one.nodes, ways)
    assert {name: (place.address, place.interface) for name, place in found.items()} == {
        "spark1": ("10.1.0.1", "right"),
        "spark2": ("10.1.1.1", "right"),
        "spark3": ("10.1.2.1", "right"),
    }
    assert found["spark1"].interfaces == ("right", "left")
    wifi = {name: dataclasses.replace(node, routes=node.routes[:1]) for name, node in ways.items()}
    with pytest.raises(PlanError, match="over the fabric"):
        fabric_places(one.nodes, wifi)


def test_the_gid_index_is_looked_up_on_each_node() -> None:
    one = cluster(2, hca=", hca: roce0")
    known = facts(one)

    def port(address: str, index: int) -> tuple[RdmaPort, ...]:
        gid = Gid(index, 2, f"::ffff:{address}")
        return (RdmaPort("roce0", 1, "ACTIVE", "LinkUp", 200.0, "fab0", (gid,)),)

    known["spark1"] = dataclasses.replace(known["spark1"], rdma=port("10.0.0.10", 3))
    with pytest.raises(PlanError, match=r"roce0 has no RoCE v2 GID of 10\.0\.0\.11") as caught:
        fabric_places(one.nodes, known)
    assert caught.value.host == "spark2"
    known["spark2"] = dataclasses.replace(known["spark2"], rdma=port("10.0.0.11", 5))
    found = fabric_places(one.nodes, known)
    assert [(place.hcas, place.gid_index) for place in found.values()] == [(("roce0",), 3), (("roce0",), 5)]


@given(taken=st.sets(st.integers(29500, 29520)))
def test_the_first_free_port_is_taken(taken: set[int]) -> None:
    busy = tuple(Listener("0.0.0.0", port, 0, 0) for port in taken)
    node = NodeFacts(MachineFacts("a", (0,), GIB, GIB), "a", listeners=busy)
    found = free_port(29500, "10.0.0.1", node)
    assert found not in taken
    assert all(port in taken for port in range(29500, found))


def test_a_port_at_another_address_is_in_nobody_s_way() -> None:
    node = NodeFacts(MachineFacts("a", (0,), GIB, GIB), "a", listeners=(Listener("127.0.0.1", 29500, 0, 0),))
    assert free_port(29500, "10.0.0.1", node) == 29500
    with pytest.raises(PlanError, match="no port from 29500 to 29500"):
        free_port(29500, "127.0.0.1", node, count=1)
