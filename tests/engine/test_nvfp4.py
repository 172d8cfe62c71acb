"""NVFP4: facts of checkpoints, the choice of a backend, and the self-test against plain arithmetic."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from glmspark.engine import nvfp4, registry
from glmspark.engine.code import installed_code
from glmspark.engine.expert_test import (
    ExpertTestError,
    OneExpert,
    compare,
    dequantised,
    expert_output,
    run,
)
from glmspark.engine.patch import PatchRefusedError, State, Target
from glmspark.engine.patches import nvfp4_experts
from glmspark.engine.shards import ShardError, Stored, read_shards
from tests.engine.altered import altered
from tools.glm_tiny.variants import make
from tools.glm_tiny.variants.dense import derive as derive_dense

GB10, H200 = Target("0.33.0", "cuda", (12, 1)), (9, 0)
ORACLE = "vllm.model_executor.layers.fused_moe.oracle.nvfp4"
MODELOPT = "vllm.model_executor.layers.quantization.modelopt"

GOOD = ("glm-tiny-nvfp4", "glm-tiny-nvfp4-modelopt", "glm-tiny-nvfp4-modelopt-w4a16")


@pytest.fixture(scope="module")
def made(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """NVFP4 variants, and one whose only fault is that it lacks input scales."""
    root = tmp_path_factory.mktemp("nvfp4")
    folders = {name: root / name for name in (*GOOD, "glm-tiny-nvfp4-modelopt-faulty")}
    for name, folder in folders.items():
        make(name, checkpoint, folder)
    folders["unscaled"] = root / "unscaled"
    make("glm-tiny-nvfp4-modelopt", checkpoint, folders["unscaled"], input_scale=False)
    return folders


def config(directory: Path, **changes: Any) -> SimpleNamespace:
    """As much of a VllmConfig as the rules look at."""
    said = json.loads((directory / "config.json").read_text())
    hf = SimpleNamespace(
        quantization_config=said.get("quantization_config"), num_hidden_layers=said["num_hidden_layers"]
    )
    return SimpleNamespace(
        **{
            "model_config": SimpleNamespace(model=str(directory), revision=None, hf_config=hf),
            "kernel_config": SimpleNamespace(moe_backend="auto"),
            "speculative_config": None,
            **changes,
        }
    )


# --- what a checkpoint says ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOOD)
def test_good_checkpoints_are_left_alone(name: str, made: dict[str, Path]) -> None:
    settings = config(made[name])
    before = json.dumps(settings.model_config.hf_config.quantization_config)
    nvfp4_experts.check_checkpoint(settings)
    assert json.dumps(settings.model_config.hf_config.quantization_config) == before
    facts = nvfp4.look(read_shards(made[name]))
    assert (facts.matrices, facts.differing) == (84, ())
    assert facts.looked_at > 20
    assert facts.with_input_scale == (84 if name == "glm-tiny-nvfp4-modelopt" else 0)
    declared = settings.model_config.hf_config.quantization_config
    assert nvfp4.is_nvfp4(declared)
    assert nvfp4.rounds_inputs(declared) is (name == "glm-tiny-nvfp4-modelopt")


def test_scales_of_their_own_are_refused(made: dict[str, Path]) -> None:
    with pytest.raises(
        PatchRefusedError, match="pairs of gate and up projections have matrix scales of their own"
    ):
        nvfp4_experts.check_checkpoint(config(made["glm-tiny-nvfp4-modelopt-faulty"]))


def test_inputs_of_4_bits_without_scales_run_as_weights_only(made: dict[str, Path]) -> None:
    """And vLLM reads the mended declaration as W4A16, where it read the published one as W4A4."""
    from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4Config

    settings = config(made["unscaled"])
    hf = settings.model_config.hf_config
    assert ModelOptNvFp4Config.from_config(hf.quantization_config).quant_method == "NVFP4"
    nvfp4_experts.check_checkpoint(settings)
    assert ModelOptNvFp4Config.from_config(hf.quantization_config).quant_method == "W4A16_NVFP4"
    assert not nvfp4.rounds_inputs(hf.quantization_config)


def test_half_the_input_scales_are_no_input_scales(made: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.torch import save_file

    source = made["glm-tiny-nvfp4-modelopt"]
    tensors = load_file(source / "model.safetensors")
    tensors.pop("model.layers.1.mlp.experts.0.gate_proj.input_scale")
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    with pytest.raises(PatchRefusedError, match="1 of 84 matrices have no input scale"):
        nvfp4_experts.check_checkpoint(config(tmp_path))


def test_compressed_tensors_has_no_word_for_it(made: dict[str, Path]) -> None:
    settings = config(made["glm-tiny-nvfp4"])
    groups = settings.model_config.hf_config.quantization_config["config_groups"]
    groups["group_0"]["input_activations"] = {"num_bits": 4, "type": "float"}
    with pytest.raises(PatchRefusedError, match="take input_activations out"):
        nvfp4_experts.check_checkpoint(settings)


def test_other_quantizations_are_nobodys_business(checkpoint: Path) -> None:
    nvfp4_experts.check_checkpoint(config(checkpoint))
    assert not nvfp4.is_nvfp4({"quant_method": "fp8"})
    assert not nvfp4.is_nvfp4({"quant_method": "modelopt", "quant_algo": "FP8"})
    assert nvfp4.is_nvfp4({"quant_method": "modelopt", "quantized_layers": {"a": {"quant_algo": "NVFP4"}}})


def test_a_scale_that_is_no_number_is_named(tmp_path: Path) -> None:
    bad = Stored("a.gate_proj.weight_scale_2", tmp_path / "x", "BF16", (2,), 0, 4)
    good = bad._replace(name="a.up_proj.weight_scale_2")
    with pytest.raises(ShardError, match=r"a\.gate_proj\.weight_scale_2 is BF16 \[2\], not one F32"):
        nvfp4.look({bad.name: bad, good.name: good})


# --- the backend --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "asked", "expected"),
    [((12, 1), "auto", "marlin"), ((12, 1), "flashinfer_b12x", "flashinfer_b12x"), (H200, "auto", "auto")],
)
def test_auto_is_marlin_on_capability_12(capability, asked, expected, made: dict[str, Path]) -> None:
    settings = config(made["glm-tiny-nvfp4"], kernel_config=SimpleNamespace(moe_backend=asked))
    nvfp4_experts.choose_backend(settings, capability)
    assert settings.kernel_config.moe_backend == expected


def test_an_unquantized_model_keeps_auto(checkpoint: Path) -> None:
    settings = config(checkpoint)
    nvfp4_experts.choose_backend(settings, (12, 1))
    assert settings.kernel_config.moe_backend == "auto"


@pytest.mark.parametrize(("asked", "expected"), [(None, "auto"), ("triton", "triton")])
def test_a_draft_in_bf16_gets_a_backend_of_its_own(asked, expected, made: dict[str, Path]) -> None:
    drafter = SimpleNamespace(model=str(made["glm-tiny-nvfp4"]), revision=None)
    speculation = SimpleNamespace(moe_backend=asked, draft_model_config=drafter)
    settings = config(made["glm-tiny-nvfp4"], speculative_config=speculation)
    nvfp4_experts.choose_backend(settings, (12, 1))
    assert (settings.kernel_config.moe_backend, speculation.moe_backend) == ("marlin", expected)


# --- the test of one expert ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOOD)
def test_matrices_are_what_the_formats_own_reader_makes_of_them(name: str, made: dict[str, Path]) -> None:
    dense = derive_dense(made[name]).tensors
    stored = load_file(made[name] / "model.safetensors")
    for module in ("model.layers.1.mlp.experts.3.gate_proj", "model.layers.0.mlp.down_proj"):
        parts = {n.rpartition(".")[2]: t for n, t in stored.items() if n.startswith(f"{module}.")}
        torch.testing.assert_close(
            dequantised(parts), dense[f"{module}.weight"].float(), rtol=2**-7, atol=1e-6
        )


class Kernel:
    """Stands for a layer and its method: computes the expert by a function, on one rank of several."""

    use_a16 = True

    def __init__(self, one: OneExpert, function: Any, tp_rank: int = 0, tp_size: int = 1) -> None:
        self.share = one.matrices(tp_rank, tp_size)
        self.function = function
        self.global_num_experts = 8
        parallel = SimpleNamespace(use_ep=False, tp_rank=tp_rank, tp_size=tp_size)
        hidden = self.share[0].shape[1]
        self.moe_config = SimpleNamespace(
            moe_parallel_config=parallel, in_dtype=torch.bfloat16, experts_per_token=2, hidden_dim=hidden + 64
        )
        self.sent: list[torch.Tensor] = []

    def parameters(self) -> Any:
        return iter([torch.zeros(1)])

    def apply(
        self, layer: Any, x: Any, weights: Any, ids: Any, shared: Any, shared_input: Any
    ) -> torch.Tensor:
        assert shared is shared_input is None
        assert (weights.sum(-1) == 1).all()
        assert (ids[:, 0] == 3).all()
        return self.function(x[:, : self.share[0].shape[1]], *self.share).to(torch.bfloat16)


@pytest.fixture
def one(made: dict[str, Path]) -> OneExpert:
    """Expert 3 of layer 2, as it comes by while loading."""
    kept = OneExpert()
    weights = load_file(made["glm-tiny-nvfp4"] / "model.safetensors").items()
    passed = list(kept.watch(weights, lambda layer, expert: (layer, expert) == (2, 3)))
    assert len(passed) == len(weights)
    assert (kept.layer, kept.expert) == (2, 3)
    return kept


def as_is(x: Any, gate: Any, up: Any, down: Any) -> torch.Tensor:
    return expert_output(x, gate, up, down)


def test_a_right_kernel_passes_and_its_shares_sum_to_the_whole(one: OneExpert) -> None:
    kernel = Kernel(one, as_is)
    verdict = run(kernel, kernel, one)
    assert verdict.passed
    assert 0 < verdict.error < 0.01
    x = torch.randn(4, kernel.share[0].shape[1])
    whole = expert_output(x, *one.matrices(0, 1))
    torch.testing.assert_close(sum(expert_output(x, *one.matrices(r, 2)) for r in range(2)), whole)
    for rank in range(2):
        half = Kernel(one, as_is, rank, 2)
        assert run(half, half, one).passed


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, g, u, d: expert_output(x, g, u * 1.1, d),  # up run by gate's scale
        lambda x, g, u, d: expert_output(x, u, g, d),
        lambda x, g, u, d: torch.zeros(x.shape[0], d.shape[0]),
        lambda x, g, u, d: torch.full((x.shape[0], d.shape[0]), float("nan")),
        lambda x, g, u, d: torch.randn(x.shape[0], d.shape[0]),
        lambda x, g, u, d: expert_output(x, g, u, d).roll(1, 0),
    ],
)
def test_a_wrong_kernel_does_not(wrong: Any, one: OneExpert) -> None:
    kernel = Kernel(one, wrong)
    assert not run(kernel, kernel, one).passed


def test_inputs_of_4_bits_are_allowed_what_they_cost(one: OneExpert) -> None:
    """Inputs rounded to NVFP4 by plain arithmetic, before both products: within their bound, not A16's."""

    def rounded(x: torch.Tensor) -> torch.Tensor:
        groups = x.float().unflatten(-1, (-1, 16))
        scale = groups.abs().amax(-1, keepdim=True) / 6
        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        near = (groups / scale).abs().unsqueeze(-1).sub(table).abs().argmin(-1)
        return (table[near] * groups.sign() * scale).flatten(-2)

    def w4a4(x: Any, gate: Any, up: Any, down: Any) -> torch.Tensor:
        inner = torch.nn.functional.silu(rounded(x) @ gate.T) * (rounded(x) @ up.T)
        return rounded(inner) @ down.T

    kernel = Kernel(one, w4a4)
    assert not run(kernel, kernel, one).passed
    kernel.use_a16 = False
    kernel.nvfp4_backend = SimpleNamespace(value="FLASHINFER_CUTLASS")  # type: ignore[attr-defined]
    verdict = run(kernel, kernel, one)
    assert verdict.passed
    assert 0.05 < verdict.error < 0.2


def test_nothing_finite_is_no_number() -> None:
    verdict = compare(torch.full((2, 2), float("inf")), torch.ones(2, 2), 0.3)
    assert math.isnan(verdict.error)
    assert not verdict.passed


class Method:
    """Stands for a quantization method whose kernel gives `output`."""

    def __init__(self, backend: str, outcome: Any) -> None:
        self.nvfp4_backend = SimpleNamespace(value=backend)
        self.outcome = outcome
        self.processed = 0

    def process_weights_after_loading(self, layer: Any) -> None:
        self.processed += 1


@pytest.mark.parametrize(
    ("backend", "capability", "raises"),
    [("MARLIN", (12, 1), False), ("FLASHINFER_CUTLASS", (12, 1), True), ("FLASHINFER_CUTLASS", H200, False)],
)
def test_a_kernel_that_cannot_be_tested(backend, capability, raises, one, monkeypatch) -> None:
    monkeypatch.setattr(nvfp4_experts, "_capability", lambda: capability)
    method = Method(backend, None)
    if raises:
        with pytest.raises(ExpertTestError, match=r"could not be tested.*\n.*--moe-backend marlin"):
            nvfp4_experts.prove(SimpleNamespace(), method, one)
    else:
        nvfp4_experts.prove(SimpleNamespace(), method, one)


def test_a_wrong_kernel_ends_the_start_with_the_way_out(one: OneExpert) -> None:
    kernel = Kernel(one, lambda x, g, u, d: torch.zeros(x.shape[0], d.shape[0]))
    kernel.nvfp4_backend = SimpleNamespace(value="FLASHINFER_CUTLASS")  # type: ignore[attr-defined]
    with pytest.raises(ExpertTestError, match=r"expert 3 of layer 2 is off by 1 .*\n.*--moe-backend marlin"):
        nvfp4_experts.prove(kernel, kernel, one)


def model_of(method: Any, quantization: Any) -> torch.nn.Module:
    """A model with one layer of experts that `method` runs."""
    model = torch.nn.Module()
    model.model = torch.nn.Module()
    experts = torch.nn.Module()
    experts.quant_method = method
    model.model.layers = torch.nn.ModuleList([torch.nn.Identity(), torch.nn.ModuleDict({"experts": experts})])
    model.model.start_layer, model.model.end_layer = 1, 2
    model.config = SimpleNamespace(quantization_config=quantization)
    model.drafts = False
    return model


def test_the_first_expert_of_this_rank_is_tested_once_its_layer_is_ready(made, monkeypatch) -> None:
    directory = made["glm-tiny-nvfp4"]
    declared = json.loads((directory / "config.json").read_text())["quantization_config"]
    method = Method("MARLIN", None)
    model = model_of(method, declared)
    weights = load_file(directory / "model.safetensors")
    assert len(list(nvfp4_experts.watch(model, weights.items()))) == len(weights)
    proved: list[Any] = []
    monkeypatch.setattr(nvfp4_experts, "prove", lambda layer, _method, one: proved.append((layer, one)))
    nvfp4_experts.arm(model)
    layer = model.model.layers[1]["experts"]
    method.process_weights_after_loading(torch.nn.Identity())  # another layer of the same method
    assert not proved
    method.process_weights_after_loading(layer)
    method.process_weights_after_loading(layer)
    ((found, one),) = proved
    assert found is layer
    assert (one.layer, method.processed) == (1, 3)
    assert len(one.matrices(0, 1)) == 3


def test_scales_of_their_own_end_the_loading_too(made: dict[str, Path]) -> None:
    directory = made["glm-tiny-nvfp4-modelopt-faulty"]
    declared = json.loads((directory / "config.json").read_text())["quantization_config"]
    model = model_of(Method("MARLIN", None), declared)
    with pytest.raises(PatchRefusedError, match="vLLM takes gate's"):
        list(nvfp4_experts.watch(model, load_file(directory / "model.safetensors").items()))


# --- preconditions ------------------------------------------------------------------------------------------


def test_it_is_for_cuda() -> None:
    assert registry.judge(nvfp4_experts.PATCH, GB10, installed_code()).state is State.APPLIED
    assert (
        registry.judge(nvfp4_experts.PATCH, Target("0.32.0", "cpu"), installed_code()).state
        is State.NOT_NEEDED
    )


@pytest.mark.parametrize(
    ("module", "pattern", "replacement", "seen"),
    [
        (ORACLE, r"config\.moe_backend", "config.backend", "does not go by config.moe_backend"),
        (ORACLE, r'"marlin": NvFp4MoeBackend\.MARLIN,', "", "no backend marlin"),
        (MODELOPT, r"topk_weights: torch\.Tensor,\n", "weights: torch.Tensor,\n", "apply takes"),
        ("vllm.config.speculative", r"moe_backend: MoEBackend", "experts: MoEBackend", "no moe_backend"),
        ("vllm.model_executor.models.config", '"GlmMoeDsaForCausalLM": Glm', '"Other": Glm', "no entry"),
    ],
)
def test_an_altered_vllm(module: str, pattern: str, replacement: str, seen: str) -> None:
    outcome = registry.judge(nvfp4_experts.PATCH, GB10, altered(module, pattern, replacement))
    assert outcome.state is State.REFUSED, outcome.why
    assert seen in outcome.why


def test_without_the_patch_the_first_choice_on_capability_12_is_not_marlin() -> None:
    """The fact it is there for, in vLLM's own code: backends are tried in this order."""
    text = installed_code().segment(ORACLE, "select_nvfp4_moe_backend")
    order = [line.strip() for line in text.splitlines() if line.strip().startswith("NvFp4MoeBackend.")]
    assert order.index("NvFp4MoeBackend.FLASHINFER_CUTLASS,") < order.index("NvFp4MoeBackend.MARLIN,")
