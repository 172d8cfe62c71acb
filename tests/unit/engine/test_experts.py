"""Pruned experts: every combination of numbers, router rows and plan is read rightly or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.engine.experts import ExpertsContradictError, kept_experts, read_plan

KEPT = {1: (0, 2, 5), 2: (1, 3, 4)}


def shapes(
    kept: dict[int, tuple[int, ...]], rows: int, bias: int | None = None
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a model with these experts and routers of `rows` rows."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (9, 4)}
    for layer, numbers in kept.items():
        stem = f"model.layers.{layer}.mlp."
        found[f"{stem}gate.weight"] = (rows, 4)
        found[f"{stem}gate.e_score_correction_bias"] = (rows if bias is None else bias,)
        found[f"{stem}shared_experts.up_proj.weight"] = (8, 4)
        for number in numbers:
            for part in ("gate_proj.weight", "up_proj.weight_packed", "down_proj.weight_scale"):
                found[f"{stem}experts.{number}.{part}"] = (8, 4)
    return found


def plan(kept: dict[int, tuple[int, ...]]) -> dict[str, dict[str, list[int]]]:
    return {str(layer): {"kept": list(numbers)} for layer, numbers in kept.items()}


@pytest.mark.parametrize("listed", [None, plan(KEPT)])
def test_original_numbers_become_ranks(listed: object) -> None:
    kept = kept_experts(shapes(KEPT, 3), 3, listed)
    assert kept is not None
    assert (
        kept.rename("model.layers.1.mlp.experts.5.up_proj.weight")
        == "model.layers.1.mlp.experts.2.up_proj.weight"
    )
    assert (
        kept.rename("model.layers.2.mlp.experts.1.w.weight_scale")
        == "model.layers.2.mlp.experts.0.w.weight_scale"
    )
    for other in (
        "model.layers.1.mlp.shared_experts.up_proj.weight",
        "model.layers.1.mlp.gate.weight",
        "lm_head.weight",
    ):
        assert kept.rename(other) == other
        assert kept.rows(other) is None


def test_a_whole_router_is_cut_to_the_kept_rows() -> None:
    kept = kept_experts(shapes(KEPT, 6), 3)
    assert kept is not None
    assert kept.rows("model.layers.1.mlp.gate.weight") == (0, 2, 5)
    assert kept.rows("model.layers.2.mlp.gate.e_score_correction_bias") == (1, 3, 4)
    assert kept.rows("model.layers.2.mlp.gate_proj.weight") is None


@pytest.mark.parametrize("listed", [None, plan(KEPT)])
def test_numbers_from_zero_need_nothing(listed: object) -> None:
    plain = dict.fromkeys(KEPT, (0, 1, 2))
    assert kept_experts(shapes(plain, 3), 3, listed) is None


def test_a_plan_that_keeps_the_first_ones_says_which_rows_they_have() -> None:
    plain = dict.fromkeys(KEPT, (0, 1, 2))
    kept = kept_experts(shapes(plain, 6), 3, plan(plain))
    assert kept is not None
    assert kept.rows("model.layers.1.mlp.gate.weight") == (0, 1, 2)


def test_a_checkpoint_without_numbered_experts_needs_nothing() -> None:
    assert kept_experts({"model.layers.1.mlp.experts.gate_up_proj": (3, 8, 4)}, 3) is None


@pytest.mark.parametrize(
    ("found", "experts", "listed", "said"),
    [
        (shapes({1: (0, 2)}, 3), 3, None, "layer 1 has 2 experts on disk, config.json says 3"),
        (shapes({1: (0, 1, 2)}, 6), 3, None, "numbered 0 to 2, but routers have 6 rows"),
        (shapes({1: (0, 1, 2)}, 6), 3, plan({1: (0, 2, 5)}), "numbered 0 to 2, but routers have 6 rows"),
        (shapes(KEPT, 5), 3, None, "neither the 3 of the experts that are left nor all"),
        (shapes(KEPT, 2), 3, None, "routers have 2 rows"),
        (shapes(KEPT, 6, bias=3), 3, None, "have 3, 6 rows"),
        (shapes(KEPT, 3), 3, plan({1: (0, 2, 4), 2: (1, 3, 4)}), "keeps 0, 2, 4, on disk are 0, 2, 5"),
        (shapes(KEPT, 3), 3, plan({1: (0, 2, 5)}), "lists no kept experts for layer 2"),
        (shapes(KEPT, 3), 3, plan({1: (0, 2), 2: (1, 3, 4)}), "keeps 2 experts, config.json says 3"),
        (shapes(KEPT, 3), 3, ["no", "plan"], "lists no kept experts for layer 1"),
        ({"model.layers.1.mlp.experts.0.w.weight": (1,)}, 1, None, "no router"),
    ],
)
def test_contradictions_are_refused(
    found: dict[str, tuple[int, ...]], experts: int, listed: object, said: str
) -> None:
    with pytest.raises(ExpertsContradictError, match=said):
        kept_experts(found, experts, listed)


@given(
    st.dictionaries(st.integers(1, 90), st.sets(st.integers(0, 255), min_size=7, max_size=7), min_size=1),
    st.booleans(),
)
def test_any_choice_of_experts_is_renumbered_in_order(chosen: dict[int, set[int]], whole: bool) -> None:
    layers = {layer: tuple(sorted(numbers)) for layer, numbers in chosen.items()}
    if all(numbers == tuple(range(7)) for numbers in layers.values()):
        return
    kept = kept_experts(shapes(layers, 256 if whole else 7), 7)
    assert kept is not None
    for layer, numbers in layers.items():
        names = [f"model.layers.{layer}.mlp.experts.{number}.up_proj.weight" for number in numbers]
        assert [kept.rename(name).split(".")[5] for name in names] == [str(place) for place in range(7)]
        assert kept.rows(f"model.layers.{layer}.mlp.gate.weight") == (numbers if whole else None)


def test_a_broken_plan_is_refused(tmp_path) -> None:
    assert read_plan(tmp_path) is None
    (tmp_path / "reap-prune-plan-full.json").write_text("{")
    with pytest.raises(ExpertsContradictError, match="is not JSON"):
        read_plan(tmp_path)
