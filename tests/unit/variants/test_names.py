import contextlib
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.models.toys import GLM_5_2, architecture
from tools.glm_tiny.config import SHAPE
from tools.glm_tiny.variants.names import (
    FUSED,
    ROW_PARALLEL,
    Module,
    Role,
    group_size,
    main_layers,
    module_of,
    moe_layers,
    mtp_layers,
)

TINY = SHAPE | {"model_type": "glm_moe_dsa"}


def every_name(config):
    for spec in architecture(config).specs:
        for expert in range(spec.experts):
            yield spec.name.replace("{expert}", str(expert)), spec


@pytest.mark.parametrize(
    ("name", "role", "layer", "expert"),
    [
        ("model.embed_tokens.weight", Role.EMBEDDING, None, None),
        ("lm_head.weight", Role.HEAD, None, None),
        ("model.norm.weight", Role.NORM, None, None),
        ("model.layers.0.mlp.up_proj.weight", Role.DENSE, 0, None),
        ("model.layers.12.mlp.experts.155.down_proj.weight", Role.EXPERT, 12, 155),
        ("model.layers.12.mlp.shared_experts.down_proj.weight", Role.SHARED, 12, None),
        ("model.layers.3.mlp.gate.weight", Role.ROUTER, 3, None),
        ("model.layers.3.mlp.gate.e_score_correction_bias", Role.ROUTER, 3, None),
        ("model.layers.3.self_attn.kv_a_proj_with_mqa.weight", Role.ATTENTION, 3, None),
        ("model.layers.3.self_attn.kv_a_layernorm.weight", Role.NORM, 3, None),
        ("model.layers.3.self_attn.indexer.k_norm.bias", Role.INDEXER, 3, None),
        ("model.layers.78.eh_proj.weight", Role.MTP_JOIN, 78, None),
        ("model.layers.78.shared_head.head.weight", Role.HEAD, 78, None),
        ("model.layers.78.shared_head.norm.weight", Role.NORM, 78, None),
        ("model.layers.78.embed_tokens.weight", Role.EMBEDDING, 78, None),
    ],
)
def test_a_name_says_what_it_is(name, role, layer, expert):
    module = module_of(name)
    assert (module.role, module.layer, module.expert) == (role, layer, expert)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.qkv_proj.weight",
        "model.layers.x.mlp.gate.weight",
        "model.layers.0.mlp.experts.gate_up_proj",
        "model.visual.blocks.0.norm1.weight",
        "weight",
        "",
    ],
)
def test_other_names_are_refused_with_the_name(name):
    with pytest.raises(ValueError, match=re.escape(name) + ": no tensor of a GLM-5.2 checkpoint"):
        module_of(name)


@given(st.text(max_size=60))
def test_any_text_is_a_module_or_a_value_error(text):
    with contextlib.suppress(ValueError):
        assert module_of(text).name == text.rpartition(".")[0]


@pytest.mark.parametrize(
    "config", [GLM_5_2, SHAPE | {"model_type": "glm_moe_dsa"}], ids=["GLM-5.2", "glm-tiny"]
)
def test_every_tensor_of_the_architecture_has_the_role_of_its_kind(config):
    same = {
        "routed_experts": Role.EXPERT,
        "shared_experts": Role.SHARED,
        "dense_mlp": Role.DENSE,
        "indexer": Role.INDEXER,
        "router": Role.ROUTER,
        "embedding": Role.EMBEDDING,
        "lm_head": Role.HEAD,
        "mtp": Role.MTP_JOIN,
    }
    for name, spec in every_name(config):
        role = module_of(name).role
        if spec.kind in same:
            assert role is same[spec.kind], name
        else:
            assert role is (Role.NORM if "norm" in name else Role.ATTENTION), name


def test_layers_of_glm_5_2():
    assert (main_layers(GLM_5_2), moe_layers(GLM_5_2), mtp_layers(GLM_5_2)) == (
        range(78),
        range(3, 78),
        range(78, 79),
    )
    assert not mtp_layers(GLM_5_2 | {"num_nextn_predict_layers": None})


def test_joined_matrices_have_one_fusion_name():
    joined = {}
    for name, _ in every_name(TINY):
        module = module_of(name)
        if module.projection in FUSED:
            joined.setdefault(module.fusion, set()).add(module.projection)
        else:
            assert module.fusion == module.name
    assert joined
    assert set(map(frozenset, joined.values())) == {
        frozenset({"gate_proj", "up_proj"}),
        frozenset({"q_a_proj", "kv_a_proj_with_mqa"}),
    }


def matrices(config, *roles):
    for name, spec in every_name(config):
        if name.endswith(".weight") and (module := module_of(name)).role in roles and module.layer > 0:
            yield module, spec.shape[-1]


@pytest.fixture(scope="module")
def experts():
    """GLM-5.2's, of which there are 58 thousand."""
    return list(matrices(GLM_5_2, Role.EXPERT))


@pytest.mark.parametrize(("tp", "size"), [(1, 128), (2, 128), (4, 128), (8, 128), (16, 128), (32, 64)])
def test_glm_5_2_keeps_the_published_group_of_128(experts, tp, size):
    assert group_size(experts, tp) == size


@pytest.mark.parametrize(("tp", "size"), [(1, 64), (2, 32), (4, 16)])
def test_glm_tiny_has_the_largest_group_that_its_ranks_share(tp, size):
    assert group_size(matrices(TINY, Role.EXPERT), tp) == size
    assert group_size(matrices(TINY, Role.ATTENTION, Role.SHARED), tp) == size


def test_ranks_that_do_not_divide_are_refused_by_the_matrix():
    with pytest.raises(ValueError, match=r"model.layers.1.mlp.down_proj has 64 inputs, which 3 ranks cannot"):
        group_size([(module_of("model.layers.1.mlp.down_proj.weight"), 64)], 3)


@given(
    st.lists(
        st.tuples(st.sampled_from(["q_b_proj", "o_proj", "kv_b_proj"]), st.integers(1, 4096)), min_size=1
    ),
    st.sampled_from([1, 2, 4]),
)
def test_a_group_lies_on_one_rank_and_none_twice_as_large_does(sizes, tp):
    inputs = [
        (Module(f"model.layers.1.self_attn.{projection}", Role.ATTENTION, 1), n * tp)
        for projection, n in sizes
    ]
    parts = [n // tp if module.projection in ROW_PARALLEL else n for module, n in inputs]
    size = group_size(inputs, tp)
    assert all(part % size == 0 for part in parts)
    assert size == 128 or any(part % (2 * size) for part in parts)
    assert math.log2(size).is_integer()
