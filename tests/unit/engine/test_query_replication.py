"""Replicating the query projection against gathering queries, for GLM-5.2 at DCP4."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glmspark.engine.patch import Target
from glmspark.engine.patches.dcp_query import needed, on_rdma
from glmspark.engine.query_replication import (
    RDMA,
    Link,
    Query,
    gather_seconds,
    replicated_bytes,
    replication_pays,
    replication_seconds,
)

GLM = Query(78, 64, 2048, 512, 192, 64, weight_bytes=1)
ETHERNET_1 = Link(100e-6, 117e6)


def test_glm_5_2() -> None:
    assert replicated_bytes(GLM, 4) == pytest.approx(2.70e9, rel=0.01)
    assert replication_seconds(GLM, 4) == pytest.approx(9.9e-3, rel=0.02)
    assert replication_seconds(replace(GLM, weight_bytes=2), 4) == pytest.approx(17.1e-3, rel=0.02)
    assert gather_seconds(GLM, 4, RDMA) == pytest.approx(2.5e-3, rel=0.02)
    assert gather_seconds(GLM, 4, ETHERNET_1) == pytest.approx(44.7e-3, rel=0.02)
    assert not replication_pays(GLM, 4, RDMA)
    assert replication_pays(GLM, 4, ETHERNET_1)


def test_with_one_rank_there_is_nothing_to_replicate_or_gather() -> None:
    assert replicated_bytes(GLM, 1) == 0
    assert gather_seconds(GLM, 1, Link(0, 1)) == 0


@pytest.mark.parametrize(
    ("environ", "rdma"),
    [
        ({}, False),
        ({"NCCL_NET": "IB"}, True),
        ({"NCCL_IB_HCA": "rocep1s0f0"}, True),
        ({"NCCL_NET": "Socket"}, False),
        ({"NCCL_IB_HCA": "rocep1s0f0", "NCCL_IB_DISABLE": "1"}, False),
    ],
)
def test_where_nccl_uses_rdma(environ: dict[str, str], rdma: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_rdma(environ) is rdma
    for name in ("NCCL_NET", "NCCL_IB_HCA", "NCCL_IB_DISABLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert (needed(Target("0.33.0", "cuda", (12, 1))) is None) is rdma
    assert needed(Target("0.32.0", "cpu")) == "cpu has no RDMA"
