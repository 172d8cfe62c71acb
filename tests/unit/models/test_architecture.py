import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.models import CheckpointError, read_architecture
from tests.unit.models.toys import GLM_5_2, architecture, toy


def test_glm_5_2_has_the_published_parameter_counts():
    # Published: 753B in all; worked out from the released dimensions: 743.4B trunk and 9.95B MTP, of which
    # 22.65B routed and 17.33B other weights are active (attention, shared and dense MLPs, lm_head).
    model = architecture(GLM_5_2)
    count = model.parameters
    assert round(model.trunk_parameters / 1e9, 1) == 743.4
    assert round(count["mtp"] / 1e9, 2) == 9.95
    assert round((model.trunk_parameters + count["mtp"]) / 1e9, 1) == 753.3
    active = count["routed_experts"] * model.experts_per_token // model.experts
    assert round(active / 1e9, 2) == 22.65
    other = sum(count[kind] for kind in ("attention", "shared_experts", "dense_mlp", "lm_head"))
    assert round(other / 1e9, 2) == 17.33
    # What the published 40.1B leaves out or in beyond that: router and indexer, 0.3B together.
    assert model.active_parameters == active + other + count["router"] + count["indexer"] + count["norm"]
    assert 40.1 <= model.active_parameters / 1e9 <= 40.4


def test_glm_5_2_has_21_indexers_in_the_published_pattern():
    model = architecture(GLM_5_2)
    assert len(model.indexed_layers) == 21
    pattern = "".join("F" if layer.indexer == "full" else "S" for layer in model.layers)
    assert pattern == "FFF" + "SSSF" * 18 + "SSS"
    assert model.kv_latent * 2 == 1152  # bytes per token and layer in bf16, as published


def test_counts_by_hand():
    count = architecture(toy()).parameters
    per_layer = 16 * 32 + 16 + 4 * 72 * 16 + 576 * 32 + 512 + 4 * 16 * 512 + 32 * 4 * 8
    assert count["attention"] == 4 * per_layer
    assert count["indexer"] == 2 * (2 * 16 * 16 + 16 * 32 + 16 + 16 + 2 * 32)
    assert count["routed_experts"] == 3 * 4 * 3 * 32 * 16
    assert count["shared_experts"] == 3 * 3 * 32 * 16
    assert count["dense_mlp"] == 3 * 32 * 48
    assert count["router"] == 3 * (4 * 32 + 4)
    assert count["embedding"] == count["lm_head"] == 100 * 32
    assert count["norm"] == 4 * 2 * 32 + 32


def test_glm_tiny_is_at_most_six_million_parameters():
    from tools.glm_tiny.config import SHAPE

    model = read_architecture({"model_type": "glm_moe_dsa", **SHAPE}, "config.json")
    assert sum(model.parameters.values()) <= 6_000_000
    assert model.kv_latent == 576


def test_variants_of_the_config():
    assert "lm_head" not in architecture(toy(tie_word_embeddings=True)).parameters
    assert "shared_experts" not in architecture(toy(n_shared_experts=0)).parameters
    assert "mtp" not in architecture(toy(num_nextn_predict_layers=0)).parameters
    dense = architecture(toy(index_topk=None))
    assert dense.indexed_layers == ()
    assert "indexer" not in dense.parameters
    by_type = toy(mlp_layer_types=["dense", "dense", "sparse", "sparse"])
    assert [layer.moe for layer in architecture(by_type).layers] == [False, False, True, True]
    biased = architecture(toy(attention_bias=True)).parameters["attention"]
    assert biased - architecture(toy()).parameters["attention"] == 4 * (16 + 576 + 32)
    quantized = toy(quantization_config={"quant_method": "compressed-tensors"})
    assert architecture(quantized).quantization == "compressed-tensors"
    from_types = toy(index_topk_pattern=None, indexer_types=["full", "shared", "full", "shared"])
    assert architecture(from_types).layers == architecture(toy()).layers
    assert len(architecture(toy(index_topk_pattern=None)).indexed_layers) == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "llama"}, "'llama'; this architecture is not served"),
        ({"model_type": None}, "there is no model_type"),
        ({"model_type": ["x"]}, "this architecture is not served"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "32"}, "hidden_size is '32', expected a whole number"),
        ({"hidden_size": True}, "hidden_size is True, expected a whole number"),
        ({"hidden_size": 0}, "hidden_size is 0, expected 1 to"),
        ({"hidden_size": 10**4000}, "hidden_size is a number beyond 10^30"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000"),
        ({"n_routed_experts": 10**7}, "n_routed_experts is 10000000"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok is 5, expected 1 to 4"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace is -1"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no', expected true or false"),
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types has 1 entries for 4 layers"),
        ({"mlp_layer_types": ["dense", "x", "sparse", "sparse"]}, "mlp_layer_types has the entry 'x'"),
        ({"mlp_layer_types": 3}, "mlp_layer_types is 3, expected a list"),
        ({"index_topk_pattern": "FSF"}, "index_topk_pattern has 3 entries for 4 layers"),
        ({"index_topk_pattern": "FXFS"}, "index_topk_pattern has the entry 'X'"),
        ({"index_topk_pattern": "SFFS"}, "begins with a shared layer"),
        ({"indexer_types": ["full"] * 4}, "index_topk_pattern disagrees with indexer_types on layer 1"),
        ({"quantization_config": "int4"}, "quantization_config is not a mapping"),
        ({"quantization_config": {}}, "quantization_config.quant_method is missing"),
        ({"dtype": 16}, "dtype is 16, expected text"),
        # What only the engine reads: it would end minutes later, or be another model.
        ({"dtype": "float8"}, "dtype is 'float8', expected bfloat16 or float16 or float32"),
        ({"architectures": ["LlamaForCausalLM"]}, "architectures does not name GlmMoeDsaForCausalLM"),
        ({"architectures": "x"}, "architectures does not name"),
        ({"qk_rope_head_dim": 63}, "qk_rope_head_dim is odd"),
        ({"hidden_act": "sine"}, "hidden_act is 'sine', expected silu"),
        ({"scoring_func": []}, "scoring_func is [], expected sigmoid or softmax"),
        ({"topk_method": "greedy"}, "topk_method is 'greedy'"),
        ({"norm_topk_prob": 1}, "norm_topk_prob is 1, expected true or false"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0, expected a number above 0"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5'"),
        ({"routed_scaling_factor": True}, "routed_scaling_factor is True"),
        ({"n_group": 3}, "n_group is 3, which does not divide 4 experts"),
        ({"topk_group": 2}, "topk_group is 2, expected 1 to 1"),
        ({"rope_parameters": "x"}, "rope_parameters is not a mapping"),
        ({"rope_parameters": {"rope_theta": -1}}, "rope_theta is -1"),
        ({"rope_theta": "x", "rope_parameters": None}, "rope_theta is 'x'"),
        ({"eos_token_id": [1, 10**6]}, "eos_token_id names 1000000, and tokens are 0 to"),
        ({"pad_token_id": -1}, "pad_token_id names -1"),
    ],
)
def test_impossible_configs_name_their_key(changes, words):
    with pytest.raises(CheckpointError) as caught:
        architecture(toy(**changes))
    assert words in caught.value.message
    assert caught.value.message.startswith("config.json: ")


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5000) | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(toy())), values, min_size=1, max_size=3))
def test_any_change_is_an_architecture_or_a_checkpoint_error(changes):
    config = json.loads(json.dumps(toy(**changes)))
    try:
        model = architecture(config)
    except CheckpointError:
        return
    assert sum(model.parameters.values()) == sum(spec.parameters for spec in model.specs)
    assert len(model.layers) == config["num_hidden_layers"]
