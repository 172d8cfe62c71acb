"""The patches for several nodes, shown an altered vLLM."""

from __future__ import annotations

import pytest

from glmspark.engine import registry
from glmspark.engine.patch import State, Target
from glmspark.engine.patches import cpu_ray, fabric_addresses, ray_nodes
from glmspark.engine.ray import probe
from tests.engine.test_preconditions import CPU, PLATFORM, REFUSED, SUPERSEDED, altered

COMMUNICATOR = "vllm.distributed.device_communicators.cpu_communicator"
RAY_UTILS = "vllm.v1.executor.ray_utils"
RAY_EXECUTOR = "vllm.v1.executor.ray_executor_v2"
WORKER_BASE = "vllm.v1.worker.worker_base"
SHARE = "_all_group_ranks_share_shm_group_name"


@pytest.fixture(autouse=True)
def below_a_ray_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLMSPARK_RAY_NODE", "1")


@pytest.mark.parametrize(
    ("patch", "module", "pattern", "replacement", "state", "seen"),
    [
        (
            cpu_ray,
            PLATFORM,
            r'dist_backend: str = "gloo"',
            'dist_backend: str = "gloo"\n    ray_device_key: str = "CPU"',
            SUPERSEDED,
            "known to Ray",
        ),
        (
            cpu_ray,
            "vllm.platforms.interface",
            "ray_device_key: str",
            "device_for_ray: str",
            REFUSED,
            "no empty",
        ),
        (cpu_ray, "vllm.plugins", '"vllm.platform_plugins"', '"vllm.platforms"', REFUSED, "platform_plugins"),
        (
            cpu_ray,
            PLATFORM,
            "def get_device_communicator_cls",
            "def communicator",
            REFUSED,
            "communicator_cls",
        ),
        (
            cpu_ray,
            COMMUNICATOR,
            rf"def {SHARE}\(self",
            f"def {SHARE}(self, how",
            REFUSED,
            "takes (self, how)",
        ),
        (cpu_ray, COMMUNICATOR, rf"and self\.{SHARE}\(\)", "", REFUSED, "without asking"),
        (cpu_ray, COMMUNICATOR, r"local_name = .*\n", "local_name = ''\n", REFUSED, "does not compare"),
        (
            ray_nodes,
            RAY_UTILS,
            r"WORKER_SPECIFIC_ENV_VARS: set\[str\]",
            "KEPT: set[str]",
            REFUSED,
            "has no set",
        ),
        (
            ray_nodes,
            RAY_EXECUTOR,
            "worker_specific_vars=WORKER_SPECIFIC_ENV_VARS",
            "worker_specific_vars=set()",
            REFUSED,
            "does not leave out",
        ),
        (
            ray_nodes,
            RAY_UTILS,
            r"def get_bundles_sorted_by_node\(\n",
            "def get_bundles_sorted_by_node(\n    key,\n",
            REFUSED,
            "takes (key, placement_group)",
        ),
        (
            ray_nodes,
            RAY_EXECUTOR,
            r"get_bundles_sorted_by_node\(placement_group\)",
            "get_bundles(placement_group)",
            REFUSED,
            "does not order",
        ),
        (
            ray_nodes,
            RAY_UTILS,
            r'    "VLLM_HOST_IP",\n',
            "".join(f'    "{name}",\n' for name in sorted(ray_nodes.NODE_VARIABLES)),
            SUPERSEDED,
            "all of a node's variables",
        ),
        (
            fabric_addresses,
            WORKER_BASE,
            r"def init_device\(self\):",
            "def init_device(self, how):",
            REFUSED,
            "takes",
        ),
        (
            fabric_addresses,
            WORKER_BASE,
            r"self\.worker\.init_device\(\)",
            "self.worker.begin()",
            REFUSED,
            "does not initialise the worker",
        ),
        (
            fabric_addresses,
            WORKER_BASE,
            "global_rank",
            "number",
            REFUSED,
            "does not know its rank",
        ),
        (
            fabric_addresses,
            "vllm.v1.executor.multiproc_executor",
            r"WorkerWrapperBase\(",
            "Wrapper(",
            REFUSED,
            "does not initialise its worker through",
        ),
        (
            fabric_addresses,
            "vllm.utils.network_utils",
            "VLLM_HOST_IP",
            "VLLM_NODE_IP",
            REFUSED,
            "does not read VLLM_HOST_IP",
        ),
    ],
)
def test_an_altered_vllm(patch, module, pattern, replacement, state, seen) -> None:
    outcome = registry.judge(patch.PATCH, CPU, altered(module, pattern, replacement))
    assert outcome.state is state, outcome.why
    assert seen in outcome.why


def test_ray_needs_no_platform_of_ours_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Target("0.33.0", "cuda", (12, 1))
    assert "by itself" in (cpu_ray.needed(cuda) or "")
    assert ray_nodes.needed(cuda) is None
    assert probe.platform() == probe.PLATFORM
    monkeypatch.delenv("GLMSPARK_RAY_NODE")
    assert probe.platform() is None
    for patch in (cpu_ray, ray_nodes):
        outcome = registry.judge(patch.PATCH, CPU, altered(PLATFORM, "gloo", "other"))
        assert outcome.state is State.NOT_NEEDED


def test_an_altered_platform_is_left_and_refused_by_the_patch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = altered(COMMUNICATOR, rf"and self\.{SHARE}\(\)", "")
    monkeypatch.setattr("glmspark.engine.code.installed_code", lambda: code)
    assert probe.platform() is None
    assert registry.judge(cpu_ray.PATCH, CPU, code).state is REFUSED
