"""The recipes that come with glmspark: sources, honesty, and that each plans at toy scale."""

import re

import pytest

from glmspark.config import load_recipe, read_recipe, recipe_names
from glmspark.config.toy import toy_of
from glmspark.errors import UsageError
from glmspark.models.checkpoint import inspect_checkpoint
from glmspark.models.source import locate
from glmspark.plan import MachineFacts, PlanError, plan_local
from glmspark.plan.checks import check_one_machine, check_runnable

LARGE = [name for name in recipe_names() if name != "glm-tiny"]
DESIGNED = {"glm-5.2-4x-dspark-1m", "glm-5.2-reap-469b-3x-pp", "glm-5.3-flash-nvfp4-4x-tp4"}
TOYS = [name for name in LARGE if not (load_recipe(name).toy or pytest.fail(name)).lacks]


def test_the_three_systems_and_todays_layouts_are_there() -> None:
    assert set(LARGE) >= DESIGNED
    nodes = {
        (load_recipe(name).model.served_name, load_recipe(name).needs.nodes) for name in set(LARGE) - DESIGNED
    }
    assert nodes == {
        ("glm-5.3-flash", 2),
        ("glm-5.3-flash", 3),
        ("glm-5.3-flash", 4),
        ("glm-5.2", 4),
        ("glm-5.2", 8),
    }


@pytest.mark.parametrize("name", LARGE)
def test_each_says_where_it_comes_from_and_what_it_needs(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.sources
    assert any(source.published for source in recipe.sources)
    assert recipe.measured == ()  # nothing of ours was measured on a Spark yet
    needs = recipe.needs
    assert needs.nodes == recipe.layout.world
    assert needs.platform == "cuda"
    assert needs.memory_per_rank is not None
    assert needs.disk is not None
    assert needs.link in ("ethernet", "rdma")
    # What is set aside, KV cache and the rest of a Spark's memory have to fit into 121 GiB.
    assert recipe.engine.kv_cache_memory < needs.memory_per_rank < 116 * 2**30
    assert f"{needs.nodes} Sparks" in recipe.description
    assert f"{recipe.engine.max_model_len:,} tokens" in recipe.description


@pytest.mark.parametrize("name", LARGE)
def test_capture_sizes_are_a_ladder_without_gaps(name: str) -> None:
    """A gap pads rows without a token, which ends the engine; too short a ladder runs eager in silence."""
    recipe = load_recipe(name)
    sizes = recipe.engine.args.get("cudagraph_capture_sizes")
    if recipe.engine.enforce_eager or recipe.layout.pp > 1:
        assert sizes is None
        return
    assert recipe.draft is not None
    step = 1 + recipe.draft.tokens
    assert list(sizes) == [step * n for n in range(1, recipe.engine.max_num_seqs + 1)]


@pytest.mark.parametrize("name", LARGE)
def test_what_cannot_be_run_yet_is_refused_with_the_reason(name: str) -> None:
    recipe = load_recipe(name)
    if recipe.lacks:
        with pytest.raises(PlanError, match=re.escape(recipe.lacks[0])) as caught:
            check_runnable(recipe)
        assert "--toy" in (caught.value.next or "") or (recipe.toy and recipe.toy.lacks)
    else:
        check_runnable(recipe)
    with pytest.raises(PlanError, match=f"is for {recipe.needs.nodes} nodes with a GPU each") as caught:
        check_one_machine(recipe)
    assert "--cluster cluster.yaml" in (caught.value.next or "")


def test_some_recipes_can_be_run_and_some_cannot() -> None:
    states = {bool(load_recipe(name).lacks) for name in LARGE}
    assert states == {True, False}


@pytest.mark.parametrize("name", TOYS)
def test_the_toy_of_each_plans(name: str) -> None:
    toy = toy_of(load_recipe(name))
    check_runnable(toy)
    check_one_machine(toy)
    # The pruned and quantized variants are made by a script; glm-tiny stands in for their shapes.
    checkpoint = inspect_checkpoint(locate(load_recipe("glm-tiny").model.source))
    facts = MachineFacts("here", (0, 1), 64 * 2**30, 64 * 2**30)
    plan = plan_local(toy, checkpoint, facts=facts)
    assert (plan.tp, plan.pp) == (toy.layout.tp, toy.layout.pp)
    assert plan.world == load_recipe(name).needs.nodes


def test_toys_that_are_left_out_say_why() -> None:
    for name in set(LARGE) - set(TOYS):
        toy = load_recipe(name).toy
        assert toy is not None
        with pytest.raises(PlanError, match=re.escape(toy.lacks[0])):
            check_runnable(toy_of(load_recipe(name)))


def test_every_toy_names_what_is_there() -> None:
    for name in LARGE:
        try:
            toy_of(load_recipe(name))
        except UsageError as error:
            pytest.fail(f"{name}: {error}")


@pytest.mark.parametrize("name", LARGE)
def test_no_moving_parts_hide_in_a_recipe(name: str) -> None:
    text = read_recipe(name).decode()
    assert "gpu_memory_utilization" not in text
    assert "trust_remote_code" not in text
    assert all(len(line) <= 130 for line in text.splitlines())
