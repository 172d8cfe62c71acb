"""Each variant of the packaged checkpoint, read by its format's own reader and compared with the original."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from compressed_tensors.entrypoints.convert import CompressedTensorsDequantizer
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer, GlmMoeDsaForCausalLM
from transformers.utils import logging

from glmspark.models import inspect_checkpoint
from glmspark.models.files import LocalFiles
from glmspark.models.inspection import Severity, inspect
from tools.glm_tiny.prompts import FIXED_PROMPTS
from tools.glm_tiny.variants import VARIANTS, derive, make
from tools.glm_tiny.variants.calibrate import conversations
from tools.glm_tiny.variants.layouts import in_nvfp4, mix_group
from tools.glm_tiny.variants.names import Role, module_of
from tools.glm_tiny.variants.reap import PLAN

logging.set_verbosity_error()
logging.disable_progress_bar()

CALIBRATED = ("glm-tiny-reap", "glm-tiny-nvfp4-modelopt")
REST = tuple(n for n in VARIANTS if n not in (*CALIBRATED, "glm-tiny-flash"))


@pytest.fixture(scope="session")
def made(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every variant, once. Those that start from another variant come after it."""
    root = tmp_path_factory.mktemp("variants")
    folders = {"glm-tiny": checkpoint}
    for name in (*CALIBRATED, *REST):
        folders[name] = root / name
        make(name, folders[VARIANTS[name].source], folders[name])
    return folders


@pytest.fixture(scope="session")
def original(checkpoint: Path) -> dict[str, Tensor]:
    return load_file(checkpoint / "model.safetensors")


@pytest.fixture(scope="session")
def dense(made: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The quantized variants as bf16 again."""
    from tools.glm_tiny.variants.checkpoint import write
    from tools.glm_tiny.variants.dense import derive as derive_dense

    root = tmp_path_factory.mktemp("dense")
    folders = {}
    for name, folder in made.items():
        if "quantization_config" in json.loads((folder / "config.json").read_text()):
            folders[name] = root / name
            write(derive_dense(folder), folders[name])
    return folders


@pytest.fixture(scope="session")
def prompts(checkpoint: Path) -> list[Tensor]:
    """Ten fixed prompts as token ids."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    texts = [
        tokenizer.apply_chat_template(
            p.messages, tools=p.declared, tokenize=False, add_generation_prompt=True, **p.template
        )
        for p in FIXED_PROMPTS[:10]
    ]
    return [tokenizer(t, add_special_tokens=False, return_tensors="pt")["input_ids"] for t in texts]


@torch.no_grad()
def logits(folder: Path, prompts: list[Tensor]) -> Tensor:
    """float32 logits at every place of the prompts, one after the other."""
    model = GlmMoeDsaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return torch.cat([model(input_ids=ids, use_cache=False).logits[0] for ids in prompts])


@pytest.fixture(scope="session")
def original_logits(checkpoint: Path, prompts: list[Tensor]) -> Tensor:
    return logits(checkpoint, prompts)


def stored(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for shard in folder.glob("*.safetensors"):
        tensors |= load_file(shard)
    return tensors


def distance(found: Tensor, wanted: Tensor) -> float:
    """Root of the mean squared difference, in standard deviations of `wanted`."""
    return float((found - wanted).pow(2).mean().sqrt() / wanted.std())


@pytest.mark.parametrize("name", [*CALIBRATED, *REST])
def test_the_checkpoint_reader_takes_every_variant(name, made):
    checkpoint = inspect_checkpoint(made[name])
    assert checkpoint.has_mtp is ("reap" not in name)
    assert checkpoint.architecture.model_type == "glm_moe_dsa"


@pytest.mark.parametrize("name", ["glm-tiny-nvfp4", "glm-tiny-int4-int8mix", "glm-tiny-reap-renumbered"])
def test_the_same_source_gives_the_same_bytes(name, made, checkpoint, tmp_path):
    again = tmp_path / "again"
    make(name, checkpoint, again)
    files = {p.name: p.read_bytes() for p in again.iterdir()}
    assert files == {p.name: p.read_bytes() for p in made[name].iterdir()}


# --- pruned -----------------------------------------------------------------------------------------------


def test_reap_is_a_byte_exact_slice_with_original_numbers(made, original):
    plan = json.loads((made["glm-tiny-reap"] / PLAN).read_text())
    assert set(plan) == {"1", "2", "3"}
    assert all(len(layer["kept"]) == 5 for layer in plan.values())
    tensors = stored(made["glm-tiny-reap"])
    for name, tensor in original.items():
        module = module_of(name)
        kept = plan.get(str(module.layer), {}).get("kept")
        if module.layer == 4 or (module.role is Role.EXPERT and module.expert not in kept):
            assert name not in tensors
        elif module.role is Role.ROUTER:
            assert torch.equal(tensors.pop(name), tensor[kept])
        else:
            assert torch.equal(tensors.pop(name), tensor)
    assert not tensors


def test_reap_reads_alike_in_both_numberings(made, prompts):
    """transformers stacks experts in the order of their numbers, so holes do not matter to it."""
    with_holes = logits(made["glm-tiny-reap"], prompts[:4])
    assert torch.equal(with_holes, logits(made["glm-tiny-reap-renumbered"], prompts[:4]))


def test_reap_with_a_whole_router_contradicts_the_config_for_transformers(made, prompts):
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        logits(made["glm-tiny-reap-whole-router"], prompts[:1])


# --- quantized --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "attention"),
    [("glm-tiny-nvfp4", "bf16"), ("glm-tiny-nvfp4-attention", "nvfp4"), ("glm-tiny-nvfp4-modelopt", "bf16")],
)
def test_nvfp4_dequantized_by_compressed_tensors_is_within_its_error(name, attention, dense, original):
    config = json.loads((dense[name] / "config.json").read_text())
    assert "quantization_config" not in config
    found = stored(dense[name])
    assert set(found) == set(original)
    for tensor, wanted in original.items():
        if tensor.endswith(".weight") and in_nvfp4(module_of(tensor), config, attention):
            error = (found[tensor].float() - wanted.float()).norm() / wanted.float().norm()
            assert 0.02 < error < 0.13, tensor
        else:
            assert torch.equal(found[tensor], wanted), tensor


def test_the_mix_dequantized_by_compressed_tensors_is_within_its_error(dense, original):
    config = json.loads((dense["glm-tiny-int4-int8mix"] / "config.json").read_text())
    found = stored(dense["glm-tiny-int4-int8mix"])
    assert set(found) == set(original)
    # Root mean square error of a rounded step, against values of a standard deviation of about range / 2.5.
    limits = {"w4a16_experts": 0.12, "w8a16_linears": 0.008, "w8a16_mtp_channel": 0.015}
    for tensor, wanted in original.items():
        group = mix_group(module_of(tensor), config) if tensor.endswith(".weight") else None
        if group is None:
            assert torch.equal(found[tensor], wanted), tensor
        else:
            error = (found[tensor].float() - wanted.float()).norm() / wanted.float().norm()
            assert limits[group] / 8 < error < limits[group], tensor


def test_transformers_reads_the_mix_itself(made, dense, prompts):
    """Its experts, int8 linears and bf16 rest; the MTP layer, which it has no module for, is left over."""
    read = logits(made["glm-tiny-int4-int8mix"], prompts[:4])
    wanted = logits(dense["glm-tiny-int4-int8mix"], prompts[:4])
    # Values rounded to bf16 at different times: a token may take another expert at a near-tie, most do not.
    assert (read - wanted).abs().median() < 0.01 * wanted.std()
    assert (read.argmax(-1) == wanted.argmax(-1)).float().mean() > 0.98


@pytest.mark.parametrize(
    "name", ["glm-tiny-nvfp4", "glm-tiny-nvfp4-attention", "glm-tiny-nvfp4-modelopt", "glm-tiny-int4-int8mix"]
)
def test_quantized_variants_say_what_the_original_says(name, dense, prompts, original_logits):
    found = logits(dense[name], prompts)
    assert distance(found, original_logits) < 0.5
    ends = torch.tensor([ids.shape[1] for ids in prompts]).cumsum(0) - 1
    agree = (found[ends].argmax(-1) == original_logits[ends].argmax(-1)).float().mean()
    assert agree >= 0.9


@pytest.fixture(scope="session")
def held_back(checkpoint: Path) -> list[tuple[Tensor, Tensor]]:
    """24 conversations that nothing was calibrated on: token ids, and which places predict the answer."""
    drawn = conversations(checkpoint, count=60, seed=77)
    short = [(torch.tensor(ids), torch.tensor(places)) for ids, places in drawn if len(ids) <= 200]
    return short[:24]


@torch.no_grad()
def without_a_wrong_token(folder: Path, held_back: list[tuple[Tensor, Tensor]]) -> int:
    """Conversations whose every answer token is the model's first choice."""
    model = GlmMoeDsaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    count = 0
    for ids, places in held_back:
        first = model(input_ids=ids[None], use_cache=False).logits[0].argmax(-1)
        count += torch.equal(first[:-1][places[:-1]], ids[1:][places[:-1]])
    return count


def test_answers_survive(checkpoint, made, dense, held_back):
    """Measured: all of 24 for the original and the quantized ones, about 9 in 10 for the pruned one."""
    assert without_a_wrong_token(checkpoint, held_back) == 24
    assert without_a_wrong_token(dense["glm-tiny-nvfp4"], held_back) >= 23
    assert without_a_wrong_token(dense["glm-tiny-int4-int8mix"], held_back) >= 23
    assert without_a_wrong_token(made["glm-tiny-reap"], held_back) >= 18


# --- ModelOpt ---------------------------------------------------------------------------------------------


def test_modelopt_carries_the_same_weights_as_compressed_tensors(made):
    ours, theirs = stored(made["glm-tiny-nvfp4-modelopt"]), stored(made["glm-tiny-nvfp4"])
    scales = [n for n in ours if n.endswith(".weight_scale_2")]
    assert len(scales) == 84
    for name in scales:
        module = name.rpartition(".")[0]
        assert torch.equal(ours[f"{module}.weight"], theirs[f"{module}.weight_packed"])
        fp8 = (ours[f"{module}.weight_scale"], theirs[f"{module}.weight_scale"])
        assert torch.equal(*(s.view(torch.uint8) for s in fp8))
        torch.testing.assert_close(1 / ours[name], theirs[f"{module}.weight_global_scale"][0])
        assert ours[name].shape == ours[f"{module}.input_scale"].shape == ()


def test_modelopt_input_scales_are_positive_and_gate_and_up_share_them(made):
    tensors = stored(made["glm-tiny-nvfp4-modelopt"])
    scales = {n.removesuffix(".input_scale"): t for n, t in tensors.items() if n.endswith(".input_scale")}
    assert len(scales) == 84
    for module, scale in scales.items():
        assert 0 < scale < 1, module
        if module.endswith("gate_proj"):
            assert scale == scales[module.replace("gate_proj", "up_proj")]


def test_the_faulty_variant_has_the_two_faults_that_are_published(made):
    tensors = stored(made["glm-tiny-nvfp4-modelopt-faulty"])
    declared = json.loads((made["glm-tiny-nvfp4-modelopt-faulty"] / "config.json").read_text())
    assert declared["quantization_config"]["config_groups"]["group_0"]["input_activations"]["num_bits"] == 4
    assert not any(n.endswith(".input_scale") for n in tensors)
    gates = {n: t for n, t in tensors.items() if n.endswith("gate_proj.weight_scale_2")}
    differ = sum(t != tensors[n.replace("gate_proj", "up_proj")] for n, t in gates.items())
    assert differ / len(gates) > 0.5


def test_nvfp4_of_the_pruned_checkpoint_keeps_plan_and_numbers(made):
    pruned, both = made["glm-tiny-reap"], made["glm-tiny-reap-nvfp4"]
    assert (both / PLAN).read_bytes() == (pruned / PLAN).read_bytes()
    experts = {module_of(n).expert for n in stored(both) if ".experts." in n}
    assert experts == {module_of(n).expert for n in stored(pruned) if ".experts." in n}


def test_dense_refuses_what_is_not_quantized(checkpoint):
    from tools.glm_tiny.variants import VariantError
    from tools.glm_tiny.variants.dense import derive as derive_dense

    with pytest.raises(VariantError, match="is bf16; start from a quantized one"):
        derive_dense(checkpoint)
    with pytest.raises(VariantError, match=r"no config\.json here"):
        derive("glm-tiny-nvfp4", checkpoint / "nowhere")


def test_the_library_validates_what_it_reads(made):
    for name in ("glm-tiny-nvfp4", "glm-tiny-nvfp4-attention", "glm-tiny-int4-int8mix"):
        CompressedTensorsDequantizer(made[name]).validate(stored(made[name]))


# --- vLLM's reading of the configs ------------------------------------------------------------------------

#: What vLLM's model class for GLM-5.2 joins.
JOINED = {
    "fused_qkv_a_proj": ["q_a_proj", "kv_a_proj_with_mqa"],
    "gate_up_proj": ["gate_proj", "up_proj"],
}


def vllm_names(original):
    """(name in vLLM, module) of every linear layer that vLLM asks a scheme for, experts one by one."""
    for name in original:
        module = module_of(name)
        linear = {Role.EXPERT, Role.SHARED, Role.DENSE, Role.ATTENTION, Role.INDEXER, Role.ROUTER, Role.HEAD}
        if name.endswith(".weight") and "norm" not in name and module.role in linear:
            yield module.name if module.role is Role.EXPERT else module.fusion, module


def test_vllm_reads_the_schemes_of_the_mix(made, original):
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
        CompressedTensorsConfig,
    )

    config = json.loads((made["glm-tiny-int4-int8mix"] / "config.json").read_text())
    read = CompressedTensorsConfig.from_config(config["quantization_config"])
    read.packed_modules_mapping = JOINED
    wanted = {"w4a16_experts": (4, 32), "w8a16_linears": (8, 32), "w8a16_mtp_channel": (8, None), None: None}
    for name, module in vllm_names(original):
        scheme = read.get_scheme_dict(torch.nn.Linear(1, 1), name)
        found = scheme and (scheme["weights"].num_bits, scheme["weights"].group_size)
        assert found == wanted[mix_group(module, config)], name


@pytest.mark.parametrize("name", ["glm-tiny-nvfp4-modelopt", "glm-tiny-nvfp4-modelopt-w4a16"])
@pytest.mark.parametrize("file", ["config.json", "hf_quant_config.json"])
def test_vllm_reads_what_modelopt_leaves_out(name, file, made, original):
    from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4Config

    declared = json.loads((made[name] / file).read_text())
    config = json.loads((made[name] / "config.json").read_text())
    read = ModelOptNvFp4Config.from_config(declared.get("quantization_config", declared))
    read.packed_modules_mapping = JOINED
    assert read.group_size == 16
    assert read.quant_method == ("W4A16_NVFP4" if name.endswith("w4a16") else "NVFP4")
    for vllm_name, module in vllm_names(original):
        whole = vllm_name.rpartition(".experts.")[0] + ".experts" if module.expert is not None else vllm_name
        assert read.is_layer_excluded(whole) is not in_nvfp4(module, config, "bf16"), vllm_name


def test_vllm_takes_the_faulty_variant_for_w4a4(made):
    """So a start must refuse it: vLLM would fold activation scales that no one loaded."""
    from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4Config

    config = json.loads((made["glm-tiny-nvfp4-modelopt-faulty"] / "config.json").read_text())
    assert ModelOptNvFp4Config.from_config(config["quantization_config"]).quant_method == "NVFP4"


@pytest.mark.parametrize("name", ["glm-tiny", *CALIBRATED, *REST])
def test_inspect_finds_what_is_wrong_and_nothing_else(made: dict[str, Path], name: str) -> None:
    expected = {"mtp-absent"} if "reap" in name else set()
    if name.endswith("faulty"):
        expected = {"w4a4-without-input-scale", "joined-scales-differ"}
    found = inspect(LocalFiles(made[name]))
    rules = {problem.rule for problem in found.problems if problem.severity is not Severity.NOTE}
    assert rules == expected
    assert found.parameters == sum(
        spec.parameters
        for spec in found.architecture.specs
        if found.mtp_stored or spec.layer is None or not spec.layer.mtp
    ) + (3 * 3 * 257 if name.endswith("whole-router") else 0)  # rows of 3 pruned experts in 3 routers
