"""Each patch, shown an altered vLLM: it refuses, or says that upstream has made it unnecessary."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from glmspark.engine import registry
from glmspark.engine.code import Code, installed_code
from glmspark.engine.patch import OPTIONAL_VARIABLE, REQUIRED_VARIABLE, PatchRefusedError, State, Target
from glmspark.engine.patches import cpu_fork, cpu_pipeline, cpu_rotary, dense_attention

CPU = Target("0.32.0", "cpu")
GB10_DENSE = Target("0.33.0", "cuda", (12, 1), dense=True)
GB10_SPARSE = Target("0.33.0", "cuda", (12, 1))

DEEPSEEK = "vllm.model_executor.models.deepseek_v2"
MTP = "vllm.model_executor.models.deepseek_mtp"
CONFIG = "vllm.model_executor.models.config"
PLATFORM = "vllm.platforms.cpu"
GPU_RUNNER = "vllm.v1.worker.gpu_model_runner"
CPU_RUNNER = "vllm.v1.worker.cpu_model_runner"
ROPE = "vllm.model_executor.layers.rotary_embedding.base"

REFUSED, SUPERSEDED = State.REFUSED, State.SUPERSEDED


@pytest.fixture
def prepared_to_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLMSPARK_CPU_START", "fork")


@pytest.fixture
def below_a_ray_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLMSPARK_RAY_NODE", "1")


@pytest.fixture
def over_rdma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_IB_HCA", "rocep1s0f0")


@pytest.fixture
def drafts_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLMSPARK_DRAFT_POLICY", "auto")


def altered(module: str, pattern: str, replacement: str) -> Code:
    """The installed vLLM with `pattern` replaced in one module; fails if that changes nothing."""
    source = installed_code().source(module)
    text = re.sub(pattern, replacement, source)
    assert text != source, f"{pattern!r} is not in {module}"
    return Code(installed_code().root, overlay={module: text})


@pytest.mark.usefixtures("prepared_to_fork", "below_a_ray_node", "over_rdma", "drafts_chosen")
@pytest.mark.parametrize("patch", registry.PATCHES, ids=lambda patch: patch.name)
def test_every_patch_fits_the_installed_vllm(patch: registry.Patch) -> None:
    target = next(target for target in (CPU, GB10_DENSE, GB10_SPARSE) if patch.needed(target) is None)
    outcome = registry.judge(patch, target, installed_code())
    assert outcome.state is State.APPLIED, outcome.why


@pytest.mark.usefixtures("prepared_to_fork")
@pytest.mark.parametrize(
    ("patch", "module", "pattern", "replacement", "state", "seen"),
    [
        (dense_attention, DEEPSEEK, r"class GlmMoeDsaForCausalLM\(", "class Renamed(", REFUSED, "has no Glm"),
        (
            dense_attention,
            DEEPSEEK,
            r'hasattr\(config, "index_topk"\)',
            "config.sparse",
            REFUSED,
            "index_topk",
        ),
        (dense_attention, MTP, r'hasattr\(config, "index_topk"\)', "config.sparse", REFUSED, "index_topk"),
        (
            dense_attention,
            DEEPSEEK,
            r"def load_weights\(self, weights:",
            "def load_weights(self, shard, weights:",
            REFUSED,
            "takes (self, shard, weights)",
        ),
        (dense_attention, CONFIG, r'"GlmMoeDsaForCausalLM": Glm', '"Other": Glm', REFUSED, "no entry"),
        (dense_attention, CONFIG, "def verify_and_update_config", "def verify", REFUSED, "verify_and_update"),
        (
            dense_attention,
            PLATFORM,
            r'raise NotImplementedError\("Sparse Attention is not supported on CPU."\)',
            "return cls.sparse_backend()",
            SUPERSEDED,
            "does not refuse sparse attention",
        ),
        (
            cpu_rotary,
            ROPE,
            r"# that updates the query and key tensors\.",
            "query = query.flatten(1)",
            SUPERSEDED,
            "reshapes",
        ),
        (cpu_rotary, ROPE, r'@CustomOp\.register\("rotary_embedding"\)', "", REFUSED, "not the custom op"),
        (cpu_rotary, ROPE, "def forward_native", "def forward_plain", REFUSED, "forward_native"),
        (cpu_pipeline, GPU_RUNNER, "assert self.intermediate_tensors is not None", "", REFUSED, "assert"),
        (
            cpu_pipeline,
            GPU_RUNNER,
            r"self\.intermediate_tensors = \(\n",
            "self.other = (\n",
            REFUSED,
            "the name has changed",
        ),
        (
            cpu_pipeline,
            CPU_RUNNER,
            r"self\.model = get_model\(",
            "self.intermediate_tensors = self.empty()\n        self.model = get_model(",
            SUPERSEDED,
            "load_model",
        ),
        (cpu_pipeline, CPU_RUNNER, r"== CompilationMode\.NONE:", "== OTHER:", SUPERSEDED, "warms up"),
        (
            cpu_pipeline,
            "vllm.v1.worker.gpu_worker",
            r"def load_model\(self, \*, load_dummy_weights",
            "def load_model(self, *, how",
            REFUSED,
            "takes (self, how)",
        ),
        (
            cpu_fork,
            PLATFORM,
            r'os\.environ\["VLLM_WORKER_MULTIPROC_METHOD"\] = "spawn"',
            "pass",
            SUPERSEDED,
            "force",
        ),
        (
            cpu_fork,
            PLATFORM,
            r"def check_and_update_config\(cls, vllm_config",
            "def check_and_update_config(cls, how, vllm_config",
            REFUSED,
            "takes (cls, how, vllm_config)",
        ),
        (
            cpu_fork,
            "vllm.utils.system_utils",
            r"envs\.VLLM_WORKER_MULTIPROC_METHOD",
            "settings.start_method",
            REFUSED,
            "does not read",
        ),
    ],
)
def test_an_altered_vllm(patch, module, pattern, replacement, state, seen) -> None:
    outcome = registry.judge(patch.PATCH, CPU, altered(module, pattern, replacement))
    assert outcome.state is state, outcome.why
    assert seen in outcome.why


def test_a_mended_kernel_makes_the_rotary_patch_unnecessary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_rotary, "kernel_error", lambda: 1e-7)
    outcome = registry.judge(cpu_rotary.PATCH, CPU, installed_code())
    assert outcome.state is State.SUPERSEDED
    assert "right to 1e-07" in outcome.why


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("0.32.0+cpu", State.APPLIED),
        ("0.33.0rc1", State.APPLIED),
        ("0.31.9", State.REFUSED),
        ("0.34.0", State.REFUSED),
        ("dev", State.REFUSED),
    ],
)
def test_only_the_versions_a_patch_is_for(version: str, state: State) -> None:
    outcome = registry.judge(dense_attention.PATCH, replace(CPU, version=version), installed_code())
    assert outcome.state is state
    assert (">=0.32,<0.34" in outcome.why) is (state is State.REFUSED)


@pytest.mark.parametrize(
    ("target", "needed"),
    [
        (Target("0.33.0", "cuda", (12, 1)), False),
        (Target("0.33.0", "cuda", (9, 0)), False),
        (Target("0.33.0", "cuda", (12, 1), dense=True), True),
        (Target("0.33.0", "cuda", (8, 9)), True),
        (Target("0.33.0", "cuda", None), False),
        (Target("0.33.0", "rocm"), False),
        (CPU, True),
    ],
)
def test_dsa_is_left_alone_where_it_works(target: Target, needed: bool) -> None:
    assert (dense_attention.needed(target) is None) is needed


def test_nothing_is_applied_when_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[str] = []
    patches = [
        replace(patch, apply=lambda name=patch.name: applied.append(name)) for patch in registry.PATCHES
    ]
    code = altered(GPU_RUNNER, "assert self.intermediate_tensors is not None", "")
    with pytest.raises(PatchRefusedError) as error:
        registry.apply(CPU, code, patches=patches)
    assert not applied
    for part in (
        "vLLM 0.32.0 (cpu)",
        "cpu-pipeline: ",
        "glmspark patches",
        f"{OPTIONAL_VARIABLE}=cpu-pipeline",
    ):
        assert part in str(error.value)

    monkeypatch.setenv(OPTIONAL_VARIABLE, " cpu-pipeline , cpu-fork")
    states = {out.patch.name: out.state for out in registry.apply(CPU, code, patches=patches)}
    assert states["cpu-pipeline"] is State.SKIPPED
    assert "cpu-pipeline" not in applied
    assert {"dense-attention", "cpu-rotary", "fabric-addresses"} <= set(applied)


def test_an_optional_patch_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTIONAL_VARIABLE, "dense")
    with pytest.raises(PatchRefusedError, match="names dense; the patches are cpu-dcp, cpu-fork"):
        registry.apply(CPU, installed_code(), patches=registry.PATCHES)


def test_a_required_patch_must_be_one_that_this_glmspark_has(monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[str] = []
    patches = [replace(patch, apply=lambda: applied.append("one")) for patch in registry.PATCHES]
    monkeypatch.setenv(REQUIRED_VARIABLE, "dense-attention, of-tomorrow")
    with pytest.raises(PatchRefusedError, match=r"requires the patch of-tomorrow, which .* does not have"):
        registry.apply(CPU, installed_code(), patches=patches)
    assert not applied
    registry.apply(CPU, installed_code(), patches=patches, refuse=False)
    monkeypatch.setenv(REQUIRED_VARIABLE, "dense-attention")
    registry.check_required()


def test_a_vllm_without_the_module(tmp_path) -> None:
    outcome = registry.judge(dense_attention.PATCH, CPU, Code(tmp_path))
    assert outcome.state is State.REFUSED
    assert DEEPSEEK in outcome.why
