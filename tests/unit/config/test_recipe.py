import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.config import Recipe, RecipeError, check_recipe, load_recipe, parse_recipe, recipe_names
from glmspark.config.canaries import Canary
from tests.unit.config.recipes import recipe_data


def raw(**sections) -> bytes:
    return json.dumps(recipe_data(**sections)).encode()  # JSON is YAML


def first(**sections) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(raw(**sections), "toy.yaml")
    return caught.value


def test_every_shipped_recipe_is_right_and_named_as_its_file():
    assert "glm-tiny" in recipe_names()
    for name in recipe_names():
        assert load_recipe(name).name == name


def test_defaults_and_sizes():
    recipe = parse_recipe(raw(), "toy.yaml")
    assert recipe.engine.kv_cache_memory == 256 * 2**20
    assert recipe.engine.dense_attention is False
    assert recipe.model.trust_remote_code is False
    assert recipe.needs.memory_per_rank is None
    assert str(recipe.model.source) == "package:toy"


def test_a_recipe_cannot_be_changed():
    recipe = parse_recipe(raw(), "toy.yaml")
    with pytest.raises(ValueError, match="frozen"):
        recipe.layout.tp = 4  # type: ignore[misc]


def test_what_show_prints_as_json_is_the_same_recipe():
    recipe = load_recipe("glm-tiny")
    data = json.dumps(recipe.model_dump(mode="json"))
    assert parse_recipe(data.encode(), "x.yaml") == recipe
    assert Recipe.model_validate_json(data) == recipe  # as records are read


@pytest.mark.parametrize(
    ("sections", "message", "hint"),
    [
        ({"recipe": 2}, "recipe: format 2 is not known", "recipe: 1"),
        ({"name": "Toy Recipe"}, "name: 'Toy Recipe' does not match", None),
        ({"layout": {"tp": 0}}, "layout.tp: input should be greater than or equal to 1, got 0", None),
        ({"layout": {"tp": True}}, "layout.tp: expected a whole number, got True", None),
        ({"layout": {"tp": "2"}}, "layout.tp: expected a whole number, got '2'", None),
        ({"layout": [2, 1]}, "layout: expected a mapping of keys, got a list", None),
        ({"layout": {"hosts": 2}}, "unknown key 'hosts' under layout", "keys are backend, dcp, pp, tp"),
        (
            {"engine": {"dtype": "float23"}},
            "engine.dtype: 'float23' is not accepted",
            "did you mean 'float32'?",
        ),
        (
            {"engine": {"enforce_eager": "yes"}},
            "engine.enforce_eager: expected true or false, got 'yes'",
            None,
        ),
        ({"engine": {"kv_cache_memory": "256Mi"}}, "did you mean 256MiB?", None),
        (
            {"engine": {"max_num_batched_tokens": 4}},
            "max_num_batched_tokens (4) is below max_num_seqs (8)",
            None,
        ),
        (
            {"engine": {"max_modle_len": 3}},
            "unknown key 'max_modle_len' under engine",
            "did you mean 'max_model_len'?",
        ),
        ({"engine": {"served_name": "x"}}, "unknown key 'served_name' under engine", "belongs under model"),
        ({"engine": {"zzz": 1}}, "unknown key 'zzz' under engine", "engine.args"),
        ({"max_model_len": 3}, "unknown key 'max_model_len'", "belongs under engine"),
        ({"engine": {"args": {"--port": 1}}}, "engine.args: write port, not --port", None),
        (
            {"engine": {"args": {"max-logprobs": 1}}},
            "engine.args: write max_logprobs, not max-logprobs",
            None,
        ),
        ({"engine": {"args": {"port": 1}}}, "engine.args: port is set by `glmspark up --port`", None),
        ({"engine": {"args": {"dtype": "auto"}}}, "dtype is a key of engine itself", None),
        ({"engine": {"args": {"seed": None}}}, "engine.args: seed has no value", None),
        ({"engine": {"args": {"a b": 1}}}, "'a b' is not a vLLM argument name", None),
        ({"engine": {"args": {"api_key": "x"}}}, "api_key is set by GLMSPARK_API_KEY", None),
        ({"engine": {"args": {"tool_parser_plugin": "/x.py"}}}, "code from a recipe is never run", None),
        ({"engine": {"env": {"VLLM_API_KEY": "x"}}}, "VLLM_API_KEY is set by GLMSPARK_API_KEY", None),
        ({"engine": {"env": {"VLLM_HOST_IP": "1"}}}, "VLLM_HOST_IP is set by the plan", None),
        ({"engine": {"env": {"GLMSPARK_X": "1"}}}, "GLMSPARK_X is set by the plan", None),
        ({"engine": {"env": {"1X": "1"}}}, "'1X' is not an environment variable name", None),
        ({"engine": {"env": {"X": 1}}}, "engine.env.X: expected text, got 1", None),
        ({"model": {"trust_remote_code": True}}, "remote code is never run", None),
        ({"model": {"source": "hf:a/b"}}, "names no revision; write hf:a/b@revision", None),
        ({"model": {"source": "hf:a/../b@main"}}, "expected package:NAME", None),
        ({"model": {"source": "path:dir"}}, "is not an absolute path", None),
        ({"model": {"source": "s3://x"}}, "expected package:NAME", None),
        ({"model": {"source": "package:../x"}}, "expected package:NAME", None),
        ({"canaries": []}, "canaries: expected at least 1 item, got 0", None),
        ({"canaries": {}}, "canaries: expected a list, got a mapping", None),
        ({"canaries": [{"probe": "anser"}]}, "canaries[0]: unknown probe 'anser'", "did you mean 'answer'?"),
        ({"canaries": [{"prompt": "x"}]}, "key 'probe' is missing under canaries[0]", "probes are answer"),
        ({"canaries": ["x"]}, "canaries[0]: ", None),
        (
            {"canaries": [{"probe": "answer", "prompt": "x", "expect": "("}]},
            "canaries[0].expect: not a regular expression",
            None,
        ),
        (
            {"canaries": [{"probe": "answer", "prompt": "x", "exptec": "4"}]},
            "unknown key 'exptec' under canaries[0]",
            "did you mean 'expect'?",
        ),
        (
            {"canaries": [{"probe": "concurrent", "cases": []}]},
            "canaries[0].cases: expected at least 1 item, got 0",
            None,
        ),
        (
            {"canaries": [{"probe": "tool_call", "prompt": "x", "tool": {"nam": "f"}, "arguments": {}}]},
            "unknown key 'nam' under canaries[0].tool",
            "did you mean 'name'?",
        ),
    ],
)
def test_each_fault_has_one_clear_sentence(sections, message, hint):
    error = first(**sections)
    assert message in error.message
    assert error.message.startswith("toy.yaml:1: ")
    if hint:
        assert hint in (error.hint or "")


def test_missing_keys():
    data = recipe_data()
    del data["engine"]["max_model_len"]
    del data["model"]
    _, problems = check_recipe(json.dumps(data).encode())
    assert {problem.message for problem in problems} == {
        "key 'model' is missing",
        "key 'max_model_len' is missing under engine",
    }


def test_a_misspelt_key_is_not_also_reported_missing():
    data = recipe_data()
    data["engin"] = data.pop("engine")
    _, problems = check_recipe(json.dumps(data).encode())
    assert [problem.message for problem in problems] == ["unknown key 'engin'"]


def test_all_faults_with_their_lines_in_order():
    text = (
        "recipe: 1\nname: toy\nmodel:\n  source: package:toy\n  served_name: toy\n  revision: 1\n"
        "engine:\n  max_model_len: long\n  max_num_seqs: 8\n  max_num_seqs: 9\n"
        "  max_num_batched_tokens: 2048\n  kv_cache_memory: 1XB\n"
        "canaries:\n  - probe: answer\n    prompt: hi\n    expect: hi\n  - probe: streaming\n    prompt: hi\n"
    )
    _, problems = check_recipe(text.encode())
    assert [problem.line for problem in problems] == [6, 8, 10, 12, 17]
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text.encode(), "toy.yaml")
    error = caught.value
    assert (error.path, error.line, len(error.problems)) == ("toy.yaml", 6, 5)
    assert error.seen is not None
    assert error.seen.count("\n") == 3


@pytest.mark.parametrize("text", ["- a\n", "just words\n", "~\n", "1\n"])
def test_only_a_mapping_is_a_recipe(text):
    with pytest.raises(RecipeError, match="a recipe is a mapping"):
        parse_recipe(text.encode(), "x.yaml")


def test_a_canary_fits_into_the_context():
    text = "\n".join(
        [
            *("recipe: 1", "name: a", "model: {source: 'package:a', served_name: a}", "engine:"),
            *("  max_model_len: 1024", "  max_num_seqs: 1", "  max_num_batched_tokens: 1024"),
            *("  kv_cache_memory: 1GiB", "canaries:", "  - {probe: ranks}"),
            "  - {probe: long_prompt, tokens: 1000, filler: a, needle: b, question: c, expect: d}",
        ]
    )
    _, (problem,) = check_recipe(text.encode())
    assert (problem.line, problem.message) == (
        11,
        "canaries[1] takes 1064 tokens, engine.max_model_len is 1024",
    )


CANARIES = [
    {"probe": "answer", "prompt": "a", "expect": "b", "name": "sum", "causes": ["c"], "timeout_s": 5},
    {"probe": "concurrent", "cases": [{"prompt": "a", "expect": "b"}], "times": 3},
    {"probe": "long_prompt", "tokens": 1500, "filler": "f", "needle": "n", "question": "q", "expect": "e"},
    {"probe": "long_answer", "prompt": "a", "expect": "b", "min_tokens": 9},
    {"probe": "streaming", "prompt": "a", "expect": "b"},
    {"probe": "reasoning", "prompt": "a", "expect": "b"},
    {"probe": "tool_call", "prompt": "a", "tool": {"name": "f", "parameters": {}}, "arguments": {"x": [1]}},
    {"probe": "ranks"},
]


def test_every_probe_is_read():
    from typing import get_args

    recipe = parse_recipe(raw(canaries=CANARIES), "x.yaml")
    assert [canary.probe for canary in recipe.canaries] == [canary["probe"] for canary in CANARIES]
    assert len(get_args(get_args(Canary)[0])) == len(CANARIES)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(sorted({*Recipe.model_fields, *recipe_data()["engine"], "tp", "probe", "source"}))


@given(st.dictionaries(keys | st.text(max_size=8), values, max_size=6))
def test_any_change_to_a_recipe_is_a_recipe_or_a_recipe_error(changes):
    recipe, problems = check_recipe(json.dumps({**recipe_data(), **changes}).encode())
    assert recipe is not None or problems
    assert not any("pydantic" in problem.message for problem in problems)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_recipe_error(data):
    with pytest.raises(RecipeError):
        parse_recipe(data, "x.yaml")


@given(st.data())
def test_any_cut_or_flip_of_a_real_recipe_is_a_recipe_or_a_recipe_error(data):
    text = bytearray(raw(canaries=CANARIES))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    recipe, problems = check_recipe(bytes(text))
    assert recipe or problems
    assert all(problem.line is None or problem.line >= 1 for problem in problems)
