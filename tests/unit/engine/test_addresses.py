"""A rank's addresses are refused before anything waits for them."""

from __future__ import annotations

import socket

import pytest

from glmspark.engine.addresses import AddressError, Rank, check

SPARK = {
    "lo": ["127.0.0.1", "::1"],
    "wlP9s9": ["192.168.1.20"],
    "enp1s0f0np0": ["198.18.0.1", "fe80::1"],
}
FABRIC = {"VLLM_HOST_IP": "198.18.0.1", "GLOO_SOCKET_IFNAME": "enp1s0f0np0"}


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def local(port: int, rank: int = 0, **kwargs) -> Rank:
    return Rank(**{"nnodes": 2, "node_rank": rank, "master_addr": "127.0.0.1", "master_port": port, **kwargs})


def test_one_process_needs_no_address(port: int) -> None:
    check(Rank(1, 0, "127.0.0.1", port), {}, {})


def test_addresses_that_fit(port: int) -> None:
    check(local(port), {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}, SPARK)
    follower = Rank(3, 1, "198.18.0.9", port)
    check(follower, FABRIC, SPARK)
    check(follower, {**FABRIC, "GLOO_SOCKET_IFNAME": "lo,enp1s0f0np0"}, SPARK)
    check(follower, {**FABRIC, "NCCL_SOCKET_IFNAME": "=enp1s0f0np0"}, SPARK, nccl=True)
    check(Rank(3, 1, "spark-1", port), FABRIC, SPARK)


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({"VLLM_HOST_IP": ""}, "VLLM_HOST_IP is not set"),
        ({"VLLM_HOST_IP": "spark-1"}, "VLLM_HOST_IP='spark-1' is not an IP address"),
        ({"VLLM_HOST_IP": "198.18.0.7"}, "no address of this machine, which has 127.0.0.1 (lo)"),
        ({"GLOO_SOCKET_IFNAME": ""}, "Set it to the interface that has 198.18.0.1: enp1s0f0np0"),
        ({"GLOO_SOCKET_IFNAME": "eth0"}, "names eth0, but this machine has lo, wlP9s9, enp1s0f0np0"),
        ({"GLOO_SOCKET_IFNAME": "wlP9s9"}, "belongs to enp1s0f0np0: they must be one network"),
        ({"NCCL_SOCKET_IFNAME": ""}, "NCCL_SOCKET_IFNAME is not set"),
        ({"NCCL_SOCKET_IFNAME": "lo"}, "belongs to enp1s0f0np0"),
    ],
)
def test_what_would_hang_is_refused(environ: dict[str, str], seen: str, port: int) -> None:
    full = {**FABRIC, "NCCL_SOCKET_IFNAME": "enp1s0f0np0", **environ}
    with pytest.raises(AddressError) as error:
        check(Rank(3, 1, "198.18.0.9", port), full, SPARK, nccl=True)
    assert seen in str(error.value)
    assert "rank 1 of 3" in str(error.value)


def test_a_follower_that_would_look_for_rank_0_on_itself(port: int) -> None:
    with pytest.raises(
        AddressError, match=r"--master-addr 127\.0\.0\.1 and VLLM_HOST_IP=198\.18\.0\.1 cannot"
    ):
        check(local(port, rank=1), FABRIC, SPARK)


def test_rank_0_is_at_the_master_address(port: int) -> None:
    with pytest.raises(AddressError, match=r"must be rank 0's own VLLM_HOST_IP, which is 198\.18\.0\.1"):
        check(local(port, master_addr="198.18.0.2"), FABRIC, SPARK)


def test_a_rank_that_is_not_among_them(port: int) -> None:
    with pytest.raises(AddressError, match=r"--node-rank 2 is not among 0\.\.1"):
        check(local(port, rank=2), FABRIC, SPARK)


def test_the_masters_port_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match=f"port {port} on 127.0.0.1 cannot be had"):
            check(local(port), {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}, SPARK)
        # A follower does not bind it.
        check(local(port, rank=1), {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}, SPARK)
