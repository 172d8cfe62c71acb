import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.plan import PlanError
from glmspark.plan.split import check_layout, layer_ranges, padded_vocab, places, valid_tps
from tests.unit.models.toys import GLM_5_2, architecture, toy


def refusal(config, tp: int, pp: int) -> str:
    with pytest.raises(PlanError) as caught:
        check_layout(architecture(config), tp, pp)
    assert caught.value.next
    return caught.value.message


def test_the_error_names_what_tp_does_not_divide_and_what_would():
    assert refusal(toy(), 3, 1) == "TP 3 does not divide 4 attention heads; TP 1, 2 and 4 do"
    assert refusal(toy(), 8, 1) == "TP 8 does not divide 4 attention heads; TP 1, 2 and 4 do"
    assert refusal(toy(), 0, 1) == "TP 0 is not possible; TP 1, 2 and 4 do"
    narrow = toy(moe_intermediate_size=15)
    assert refusal(narrow, 2, 1) == "TP 2 does not divide 15 routed expert width; TP 1 does"
    assert "does not divide 50 dense MLP width" in refusal(toy(intermediate_size=50), 4, 1)
    odd = toy(moe_intermediate_size=15, n_shared_experts=2, num_attention_heads=15, intermediate_size=45)
    assert "padded vocabulary" in refusal(odd, 3, 1)


def test_pp_is_at_most_the_number_of_layers():
    assert refusal(toy(), 1, 5) == "PP 5 is not possible with 4 layers; PP 1 to 4 are"
    assert "PP 0 is not possible" in refusal(toy(), 1, 0)
    assert "PP -1 is not possible" in refusal(toy(), 1, -1)


def test_valid_layouts():
    assert valid_tps(architecture(toy())) == (1, 2, 4)
    assert valid_tps(architecture(GLM_5_2)) == (1, 2, 4, 8, 16, 32, 64)
    for tp in (1, 2, 4):
        for pp in (1, 2, 3, 4):
            check_layout(architecture(toy()), tp, pp)


@pytest.mark.parametrize(
    ("layers", "pp", "want"),
    [
        (78, 3, ((0, 26), (26, 52), (52, 78))),
        (79, 3, ((0, 26), (26, 53), (53, 79))),
        (4, 3, ((0, 1), (1, 3), (3, 4))),
        (5, 2, ((0, 3), (3, 5))),
        (78, 4, ((0, 19), (19, 39), (39, 59), (59, 78))),
        (7, 1, ((0, 7),)),
    ],
)
def test_layers_are_split_as_vllm_splits_them(layers, pp, want):
    assert layer_ranges(layers, pp) == want


@given(st.integers(1, 200).flatmap(lambda layers: st.tuples(st.just(layers), st.integers(1, layers))))
def test_stages_cover_all_layers_evenly(case):
    layers, pp = case
    ranges = layer_ranges(layers, pp)
    assert [start for start, _ in ranges] == [0, *[end for _, end in ranges[:-1]]]
    assert ranges[-1][1] == layers
    sizes = [end - start for start, end in ranges]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@given(st.integers(1, 8), st.integers(1, 8))
def test_tp_is_the_inner_dimension(tp, pp):
    found = places(8, tp, pp)
    assert [place.rank for place in found] == list(range(tp * pp))
    assert all(place.rank == place.pp_rank * tp + place.tp_rank for place in found)
    assert sum(place.first_stage for place in found) == tp
    assert sum(place.last_stage for place in found) == tp


def test_the_vocabulary_is_padded_to_64():
    assert [padded_vocab(n) for n in (1, 64, 65, 576, 154880)] == [64, 64, 128, 576, 154880]
