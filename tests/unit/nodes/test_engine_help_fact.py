"""How an engine is asked for its flags."""

from glmspark.nodes.facts import engine_help


def test_of_this_environment() -> None:
    fact = engine_help.of_environment("/venv/bin/python")
    assert fact.command == (
        *("env", "COLUMNS=100", "/venv/bin/python", "-m", "glmspark.engine.serve", "--help=all"),
    )


def test_of_an_image() -> None:
    container = ("docker", "run", "--rm", "--pull", "never", "--network", "none", "--env", "COLUMNS=100")
    assert engine_help.of_image("glmspark:1").command == (
        *container,
        *("--entrypoint", "python3", "glmspark:1", "-m", "glmspark.engine.serve", "--help=all"),
    )
    mounted = engine_help.of_image("lab:base", python="/v/bin/python", mounts=("/v", "/src"))
    assert mounted.command == (
        *container,
        *("--volume", "/v:/v:ro", "--volume", "/src:/src:ro"),
        *("--entrypoint", "/v/bin/python", "lab:base", "-m", "glmspark.engine.serve", "--help=all"),
    )
    assert engine_help.of_foreign_image("vllm/vllm-openai:1").command == (
        *container,
        *("--entrypoint", "vllm", "vllm/vllm-openai:1", "serve", "--help=all"),
    )
