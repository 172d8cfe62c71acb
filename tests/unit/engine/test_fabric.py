"""The plan's fabric in one variable, and a worker that does not stand where it says."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.engine.addresses import AddressError
from glmspark.engine.fabric import FABRIC, Fabric

SPARK = {"lo": ["127.0.0.1"], "wlP9s9": ["192.168.1.20"], "fab1": ["198.18.0.2", "fe80::2"]}
PLAN = "198.18.0.1@fab0,198.18.0.2@fab1"
HERE = {"VLLM_HOST_IP": "198.18.0.2", "GLOO_SOCKET_IFNAME": "fab1", "NCCL_SOCKET_IFNAME": "=fab1"}


def fabric(text: str = PLAN) -> Fabric:
    found = Fabric.from_environment({FABRIC: text})
    assert found is not None
    return found


INTERFACES = st.from_regex(r"[a-z][a-z0-9]{0,14}", fullmatch=True)


@given(st.lists(st.tuples(st.ip_addresses(), INTERFACES), min_size=1))
def test_what_is_written_is_read(nodes) -> None:
    text = ",".join(f"{address}@{interface}" for address, interface in nodes)
    if len({address for address, _ in nodes}) < len(nodes):
        with pytest.raises(AddressError, match="twice"):
            fabric(text)
    else:
        assert [(node.address, node.interface) for node in fabric(text).nodes] == nodes


def test_without_a_plan() -> None:
    assert Fabric.from_environment({}) is None


@pytest.mark.parametrize(
    "text", ["198.18.0.1", "198.18.0.1@", "@fab0", "node1@fab0", "198.18.0.1@fab0,", "1@2@"]
)
def test_what_is_no_plan(text: str) -> None:
    with pytest.raises(AddressError, match="is not ADDRESS@INTERFACE"):
        fabric(text)


def test_a_worker_that_stands_where_the_plan_has_it() -> None:
    fabric().verify(1, 2, HERE, SPARK, nccl=True)
    fabric().verify(3, 4, HERE, SPARK, nccl=True)  # two ranks a node
    without_nccl = {name: value for name, value in HERE.items() if not name.startswith("NCCL")}
    fabric().verify(1, 2, without_nccl, SPARK)


@pytest.mark.parametrize(
    ("changed", "seen"),
    [
        ({"VLLM_HOST_IP": "192.168.1.20"}, "but VLLM_HOST_IP is 192.168.1.20 in this process"),
        ({"VLLM_HOST_IP": ""}, "but VLLM_HOST_IP is not set"),
        ({"GLOO_SOCKET_IFNAME": "wlP9s9"}, "but GLOO_SOCKET_IFNAME is wlP9s9"),
        ({"GLOO_SOCKET_IFNAME": ""}, "but GLOO_SOCKET_IFNAME is not set"),
        ({"NCCL_SOCKET_IFNAME": "fab"}, "but NCCL_SOCKET_IFNAME is fab"),
    ],
)
def test_a_worker_with_other_addresses(changed: dict[str, str], seen: str) -> None:
    with pytest.raises(AddressError) as error:
        fabric().verify(1, 2, {**HERE, **changed}, SPARK, nccl=True)
    assert str(error.value).startswith("rank 1 of 2: the plan has it at 198.18.0.2 on fab1, but")
    assert seen in str(error.value)


def test_a_worker_on_another_node_or_interface() -> None:
    with pytest.raises(
        AddressError, match=r"at 198.18.0.1 on fab0, but this machine has .*198.18.0.2 \(fab1\)"
    ):
        fabric().verify(0, 2, HERE, SPARK)
    with pytest.raises(AddressError, match="on fab9, but here fab1 has that address"):
        fabric("198.18.0.1@fab0,198.18.0.2@fab9").verify(1, 2, HERE, SPARK)


def test_all_of_loopback_is_the_loopback_interface() -> None:
    here = {"VLLM_HOST_IP": "127.0.0.3", "GLOO_SOCKET_IFNAME": "lo"}
    fabric("127.0.0.2@lo,127.0.0.3@lo").verify(1, 2, here, SPARK)
    assert ipaddress.ip_address("127.0.0.3").is_loopback
