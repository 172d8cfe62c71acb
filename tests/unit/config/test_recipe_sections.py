"""Layout, drafter, needs, sources and toy: what the format accepts and refuses."""

import json

import pytest

from glmspark.config import RecipeError, load_recipe, parse_recipe, recipe_names
from glmspark.config.loader import recipe_path
from glmspark.plan.flags import engine_flags
from tests.unit.config.recipes import recipe_data


def recipe(**sections):
    return parse_recipe(json.dumps(recipe_data(**sections)).encode(), "toy.yaml")


def refused(**sections) -> str:
    with pytest.raises(RecipeError) as caught:
        recipe(**sections)
    return str(caught.value)


def test_context_parallelism_and_backend():
    found = recipe(layout={"tp": 4, "pp": 2, "dcp": 2, "backend": "ray"})
    assert (found.layout.world, found.layout.backend) == (8, "ray")
    flags = engine_flags(found, tp=4, pp=2)
    assert flags["decode-context-parallel-size"] == 2
    assert "decode-context-parallel-size" not in engine_flags(found, tp=4, pp=2, dcp=1)
    assert "decode-context-parallel-size" not in engine_flags(recipe(), tp=2, pp=1)


def test_a_drafter_becomes_vllms_own_setting():
    assert "speculative-config" not in engine_flags(recipe(), tp=1, pp=1)
    mtp = recipe(draft={"method": "mtp", "tokens": 3, "args": {"moe_backend": "marlin"}})
    assert json.loads(str(engine_flags(mtp, tp=1, pp=1)["speculative-config"])) == {
        "method": "mtp",
        "num_speculative_tokens": 3,
        "moe_backend": "marlin",
    }
    dspark = recipe(draft={"method": "dspark", "tokens": 7, "source": "hf:org/drafter@abc"})
    config = json.loads(str(engine_flags(dspark, tp=1, pp=1, draft_dir="/models/d")["speculative-config"]))
    assert config == {"method": "dspark", "num_speculative_tokens": 7, "model": "/models/d"}
    named = json.loads(str(engine_flags(dspark, tp=1, pp=1)["speculative-config"]))
    assert named["model"] == "org/drafter"


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"layout": {"tp": 4, "dcp": 3}}, "dcp 3 does not divide tp 4"),
        ({"layout": {"backend": "mpi"}}, "layout.backend: 'mpi' is not accepted"),
        ({"draft": {"method": "dspark", "tokens": 3}}, "method dspark needs source"),
        ({"draft": {"method": "ngram", "tokens": 3, "source": "package:x"}}, "ngram has no checkpoint"),
        ({"draft": {"method": "mtp", "tokens": 0}}, "draft.tokens: input should be greater"),
        ({"draft": {"method": "custom_class", "tokens": 1}}, "draft.method: 'custom_class' is not accepted"),
        ({"draft": {"method": "mtp", "tokens": 1, "args": {"method": "x"}}}, "method is set by draft.method"),
        ({"draft": {"method": "mtp", "tokens": 1, "args": {"model": "x"}}}, "model is set by draft.source"),
        (
            {
                "draft": {"method": "mtp", "tokens": 1},
                "engine": {"args": {"speculative_config": {"method": "mtp"}}},
            },
            "exclude each other",
        ),
        ({"needs": {"nodes": 3}}, "needs.nodes is 3, and the layout has 2 ranks"),
        ({"needs": {"platform": "rocm"}}, "needs.platform: 'rocm' is not accepted"),
        ({"needs": {"link": "wifi"}}, "needs.link: 'wifi' is not accepted"),
        ({"needs": {"disk": "4 lb"}}, "needs.disk: unknown unit 'lb'"),
        ({"sources": [{"url": "ftp://x", "takes": "y"}]}, "sources[0].url: 'ftp://x' does not match"),
        ({"sources": [{"url": "https://x.org/y"}]}, "key 'takes' is missing under sources[0]"),
        ({"sources": [{"takes": "y"}]}, "a source has a url or, where there is none, a title"),
        ({"canaries": "glm-9"}, "'glm-9' is no list of canaries that comes with glmspark; those are glm-5.2"),
        ({"patches": {"required": ["A b"]}}, "patches.required[0]"),
        ({"engine": {"args": {"decode_context_parallel_size": 2}}}, "set by layout.dcp"),
        ({"engine": {"env": {"NCCL_IB_HCA": "x"}}}, "NCCL_IB_HCA is set by the plan, from cluster.yaml"),
    ],
)
def test_one_fault_one_sentence(sections, message):
    assert message in refused(**sections)


def test_a_list_of_canaries_by_name_is_that_list():
    for name in ("glm-5.2", "glm-5.3"):
        found = recipe(canaries=name, engine={"max_model_len": 65536})
        assert len(found.canaries) >= 10
        assert {canary.probe for canary in found.canaries} == {
            "ranks",
            "answer",
            "concurrent",
            "long_prompt",
            "long_answer",
            "streaming",
            "reasoning",
            "tool_call",
        }
        again = parse_recipe(json.dumps(found.model_dump(mode="json")).encode(), "x.yaml")
        assert again == found


def test_a_context_too_short_for_a_list_by_name_is_refused_by_the_canary():
    message = refused(canaries="glm-5.2")
    assert "takes 24064 tokens, engine.max_model_len is 2048" in message


def test_lists_of_canaries_are_no_recipes():
    with pytest.raises(RecipeError, match="no recipe of this name"):
        recipe_path("glm-5.2")


@pytest.mark.parametrize("name", sorted(recipe_names()))
def test_a_recipe_comes_back_from_a_record(name):
    one = load_recipe(name)
    data = one.model_dump(mode="json")
    assert type(one).model_validate_json(json.dumps(data)).model_dump(mode="json") == data
