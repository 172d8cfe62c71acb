"""A worker that stands elsewhere than the plan says ends the start, before any group is formed."""

from __future__ import annotations

from pathlib import Path

import pytest

from glmspark.engine import plugin
from glmspark.engine.addresses import AddressError
from tests.engine.test_context import configure


class Device:
    """Stands for a worker: whatever it begins, it begins in `init_device`."""

    begun = False

    def init_device(self) -> None:
        self.begun = True


def test_a_worker_with_another_address_than_the_plan_gives_it(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the patch both begin, and would wait for each other on two networks."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    plugin.register()
    monkeypatch.setenv("VLLM_HOST_IP", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("GLMSPARK_FABRIC", "127.0.0.1@lo,127.0.0.9@lo")
    config = configure(checkpoint, 2048, pipeline_parallel_size=2, distributed_executor_backend="mp")
    wrappers = [WorkerWrapperBase(rpc_rank=rank, global_rank=rank) for rank in range(2)]
    for wrapper in wrappers:
        wrapper.vllm_config, wrapper.worker = config, Device()
    wrappers[0].init_device()
    assert wrappers[0].worker.begun
    with pytest.raises(AddressError, match=r"rank 1 of 2: the plan has it at 127\.0\.0\.9 on lo, but"):
        wrappers[1].init_device()
    assert not wrappers[1].worker.begun


def test_without_a_plan_the_rules_for_several_nodes_hold(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from glmspark.engine.patches.fabric_addresses import verify

    for name in ("GLMSPARK_FABRIC", "VLLM_HOST_IP"):
        monkeypatch.delenv(name, raising=False)
    config = configure(checkpoint, 2048, pipeline_parallel_size=2, distributed_executor_backend="mp")
    verify(config, 0)  # one node: nothing to compare
    config.parallel_config.nnodes, config.parallel_config.node_rank = 2, 1
    with pytest.raises(AddressError, match="VLLM_HOST_IP is not set"):
        verify(config, 1)
