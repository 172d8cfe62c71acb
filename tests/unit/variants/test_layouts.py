import fnmatch
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.models.toys import GLM_5_2, architecture
from tools.glm_tiny.config import SHAPE
from tools.glm_tiny.variants.layouts import (
    EXPERTS,
    LINEARS,
    MIX_IGNORE,
    MTP,
    in_nvfp4,
    keep_best,
    mix_group,
    mix_targets,
    modelopt_config,
    modelopt_exclude,
    nvfp4_ignore,
)
from tools.glm_tiny.variants.names import Role, module_of

TINY = SHAPE | {"model_type": "glm_moe_dsa"}
BOTH = pytest.mark.parametrize("config", [GLM_5_2, TINY], ids=["GLM-5.2", "glm-tiny"])


def tensors(config, experts=None):
    """(name, shape) of each tensor; `experts` limits how many of a layer are listed."""
    for spec in architecture(config).specs:
        for expert in range(min(spec.experts, experts or spec.experts)):
            yield spec.name.replace("{expert}", str(expert)), spec.shape


def modules(config):
    """Each module with a matrix, once; a few experts stand for all."""
    return [module_of(name) for name, shape in tensors(config, experts=3) if len(shape) == 2]


def matches(name, patterns):
    """How compressed-tensors and vLLM read a target: `re:` is a regular expression from the name's start."""
    return any(re.match(p.removeprefix("re:"), name) if p.startswith("re:") else p == name for p in patterns)


def test_int4_int8mix_of_glm_5_2_is_the_published_one_to_the_byte():
    """The index of QuantTrio/GLM-5.2-Int4-Int8Mix names 177,569 tensors of 405,459,090,304 bytes."""
    bits, count, size = {EXPERTS: 4, LINEARS: 8, MTP: 8}, 0, 0
    for name, shape in tensors(GLM_5_2):
        module = module_of(name)
        group = mix_group(module, GLM_5_2) if name.endswith(".weight") else None
        if group is None:
            count += 1
            values = shape[0] * (shape[1] if len(shape) == 2 else 1)
            size += values * (4 if module.role is Role.ROUTER else 2)
        else:
            outputs, inputs = shape
            scales = 1 if group == MTP else inputs // 128
            count += 3  # weight_packed, weight_scale (bf16), weight_shape (two int64)
            size += outputs * inputs * bits[group] // 8 + outputs * scales * 2 + 16
    assert (count, size) == (177_569, 405_459_090_304)


@BOTH
def test_int4_int8mix_targets_say_what_the_groups_are(config):
    targets = mix_targets(config)
    for module in modules(config):
        ignored = matches(module.name, MIX_IGNORE)
        found = [] if ignored else [g for g, patterns in targets.items() if matches(module.name, patterns)]
        group = mix_group(module, config)
        if module.name == "model.embed_tokens":
            continue  # no linear layer: targets are about those
        assert found == ([group] if group else []), module.name


def test_int4_int8mix_targets_reach_the_names_that_vllm_gives_joined_and_mtp_layers():
    targets = mix_targets(GLM_5_2)
    assert matches("model.layers.7.self_attn.fused_qkv_a_proj", targets[LINEARS])
    assert matches("model.layers.7.mlp.shared_experts.gate_up_proj", targets[LINEARS])
    assert matches("model.layers.78.mtp_block.self_attn.o_proj", targets[MTP])
    assert matches("model.layers.78.mtp_block.mlp.experts.0.gate_proj", targets[MTP])
    assert not matches("model.layers.77.mlp.experts.0.gate_proj", targets[LINEARS] + targets[MTP])


def test_int4_int8mix_of_a_checkpoint_without_mtp_has_no_group_for_it():
    assert set(mix_targets(TINY | {"num_nextn_predict_layers": 0})) == {EXPERTS, LINEARS}


@pytest.mark.parametrize("attention", ["bf16", "nvfp4"])
@BOTH
def test_nvfp4_ignores_exactly_what_it_does_not_quantize(config, attention):
    for module in modules(config):
        taken = in_nvfp4(module, config, attention)
        assert taken is not matches(module.name, nvfp4_ignore(config, attention)), module.name
        excluded = any(fnmatch.fnmatchcase(module.name, p) for p in modelopt_exclude(config, attention))
        assert taken is not excluded, module.name


@BOTH
def test_nvfp4_leaves_router_indexer_head_and_mtp_in_bf16(config):
    for module in modules(config):
        if module.role in {Role.ROUTER, Role.INDEXER, Role.HEAD, Role.EMBEDDING, Role.MTP_JOIN}:
            assert not in_nvfp4(module, config, "nvfp4"), module.name
        if module.layer == config["num_hidden_layers"]:
            assert not in_nvfp4(module, config, "nvfp4"), module.name


@pytest.mark.parametrize("algorithm", ["NVFP4", "W4A16_NVFP4"])
def test_modelopt_declares_activations_only_for_w4a4(algorithm):
    beside, inside = modelopt_config(TINY, "bf16", algorithm)
    group = inside["config_groups"]["group_0"]
    assert ("input_activations" in group) is (algorithm == "NVFP4")
    assert inside["quant_algo"] == beside["quantization"]["quant_algo"] == algorithm
    assert inside["ignore"] == beside["quantization"]["exclude_modules"]
    assert inside["quant_method"] == "modelopt"
    assert beside["quantization"] | {"exclude_modules": []} == {
        "quant_algo": algorithm,
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "exclude_modules": [],
    }
    json.dumps([beside, inside])


@given(
    st.dictionaries(
        st.integers(1, 9), st.lists(st.floats(0, 9, width=16), min_size=8, max_size=8), min_size=1
    ),
    st.integers(1, 8),
)
def test_kept_experts_are_the_best_in_order(saliency, keep):
    kept = keep_best(saliency, keep)
    assert set(kept) == set(saliency)
    for layer, experts in kept.items():
        scores = saliency[layer]
        assert len(experts) == keep
        assert experts == sorted(set(experts))
        worst = min(scores[e] for e in experts)
        assert all(scores[e] <= worst for e in range(8) if e not in experts)


def test_of_equally_good_experts_the_lower_number_stays():
    assert keep_best({1: [1.0, 2.0, 1.0, 2.0]}, 3) == {1: [0, 1, 3]}
