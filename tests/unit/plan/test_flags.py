from glmspark.plan.flags import engine_env, engine_flags, flag_words
from tests.unit.plan.plans import recipe


def test_typed_settings():
    found = engine_flags(
        recipe(engine={"enforce_eager": True, "reasoning_parser": "glm45", "tool_call_parser": "glm47"}),
        tp=2,
        pp=1,
    )
    assert found == {
        "served-model-name": "toy",
        "tensor-parallel-size": 2,
        "pipeline-parallel-size": 1,
        "dtype": "float32",
        "max-model-len": 2048,
        "max-num-seqs": 8,
        "max-num-batched-tokens": 2048,
        "kv-cache-memory-bytes": 256 * 2**20,
        "enforce-eager": True,
        "reasoning-parser": "glm45",
        "enable-auto-tool-choice": True,
        "tool-call-parser": "glm47",
    }
    plain = engine_flags(recipe(), tp=2, pp=1)
    assert not {"enforce-eager", "reasoning-parser", "enable-auto-tool-choice"} & plain.keys()


def test_further_arguments_as_words():
    args = {
        "max_logprobs": 5,
        "enable_prefix_caching": False,
        "async_scheduling": True,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
        "middleware": ["a", "b"],
        "cudagraph_capture_sizes": [1, 2],
        "seed": -1,
        "some_factor": 0.5,
    }
    found = engine_flags(recipe(engine={"args": args}), tp=1, pp=1)
    words = flag_words({name: value for name, value in found.items() if name.replace("-", "_") in args})
    assert words == (
        "--max-logprobs", "5",
        "--no-enable-prefix-caching",
        "--async-scheduling",
        "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}',
        "--middleware", "a", "b",
        "--cudagraph-capture-sizes", "1", "2",
        "--seed=-1",
        "--some-factor", "0.5",
    )  # fmt: skip


def test_environment_of_the_ranks():
    assert engine_env(recipe()) == {"GLMSPARK_DENSE_ATTENTION": "0", "GLMSPARK_OPTIONAL_PATCHES": ""}
    found = engine_env(
        recipe(engine={"dense_attention": True, "env": {"X": "1"}}, patches={"optional": ["a", "b"]})
    )
    assert found == {"X": "1", "GLMSPARK_DENSE_ATTENTION": "1", "GLMSPARK_OPTIONAL_PATCHES": "a,b"}
