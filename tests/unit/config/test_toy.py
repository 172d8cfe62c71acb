"""A recipe at toy scale is the same recipe, but for what `toy` names and glm-tiny's sizes."""

import json

import pytest

from glmspark.config import load_recipe, parse_recipe
from glmspark.config.toy import toy_of
from glmspark.errors import UsageError
from tests.unit.config.recipes import recipe_data

LARGE = {
    "layout": {"tp": 4, "dcp": 2, "backend": "ray"},
    "engine": {
        "dtype": "auto",
        "max_model_len": 262144,
        "kv_cache_memory": "16GiB",
        "args": {"moe_backend": "marlin", "load_format": "spark"},
        "env": {"NCCL_NET": "IB", "MALLOC_ARENA_MAX": "2"},
    },
    "draft": {"method": "mtp", "tokens": 2},
    "patches": {"required": ["dense-attention"], "optional": ["cpu-fork"]},
    "needs": {"nodes": 4, "platform": "cuda", "memory_per_rank": "100GiB"},
    "canaries": "glm-5.2",
    "lacks": ["something"],
    "measured": ["1 tok/s"],
}
TOY = {
    "source": "package:glm-tiny",
    "differs": "It is small.",
    "without": ["moe_backend", "NCCL_NET"],
    "draft": {"method": "ngram", "tokens": 2},
    "without_canaries": ["code", "reasoning"],
}


def large(**toy):
    data = recipe_data(**LARGE, toy={**TOY, **toy})
    return parse_recipe(json.dumps(data).encode(), "toy.yaml")


def test_what_is_kept_and_what_is_not():
    recipe = large()
    toy = toy_of(recipe)
    assert toy.name == "toy-toy"
    assert toy.layout == recipe.layout
    assert toy.engine.args == {"load_format": "spark"}
    assert toy.engine.env == {"MALLOC_ARENA_MAX": "2"}
    assert (toy.engine.max_model_len, toy.engine.dtype, toy.engine.enforce_eager) == (2048, "float32", True)
    assert toy.draft is not None
    assert toy.draft.method == "ngram"
    assert (toy.needs.nodes, toy.needs.platform, toy.needs.memory_per_rank) == (None, "cpu", None)
    assert (toy.patches.required, toy.patches.optional) == ((), ("cpu-fork",))
    assert (toy.lacks, toy.measured, toy.toy) == ((), (), None)
    names = [canary.name or canary.probe for canary in toy.canaries]
    every = [canary.name or canary.probe for canary in load_recipe("glm-tiny").canaries]
    assert names == [name for name in every if name not in ("code", "reasoning")]
    assert toy.description == "toy at toy scale. It is small."


def test_a_toy_is_a_whole_recipe():
    toy = toy_of(large())
    assert parse_recipe(json.dumps(toy.model_dump(mode="json")).encode(), "x.yaml") == toy


@pytest.mark.parametrize(
    ("toy", "message"),
    [
        ({"without": ["moe_bakend"]}, "toy.without names moe_bakend, which engine does not set"),
        ({"without_canaries": ["sums"]}, "toy.without_canaries names sums"),
    ],
)
def test_a_toy_says_only_what_differs(toy, message):
    with pytest.raises(UsageError, match=message):
        toy_of(large(**toy))


def test_a_recipe_without_a_toy():
    with pytest.raises(UsageError, match="glm-tiny has no toy counterpart") as caught:
        toy_of(load_recipe("glm-tiny"))
    assert caught.value.next == "glm-tiny is one itself"
