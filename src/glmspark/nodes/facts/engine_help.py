"""Which flags an engine takes: its own `vllm serve --help=all`, of this environment or of an image."""

from __future__ import annotations

from collections.abc import Sequence

from glmspark.nodes.facts import Fact
from glmspark.plan.engine_help import EngineHelp, parse_help

NAME = "engine's flags"
_ALL = "--help=all"
_WIDTH = "COLUMNS=100"


def of_environment(python: str) -> Fact[EngineHelp]:
    """Of the engine that a Python has."""
    return Fact(NAME, ("env", _WIDTH, python, "-m", "glmspark.engine.serve", _ALL), parse_help)


def of_image(image: str, *, python: str = "python3", mounts: Sequence[str] = ()) -> Fact[EngineHelp]:
    """Of an image that has glmspark. mounts: directories it needs from the node, read-only, as they are."""
    argv = (python, "-m", "glmspark.engine.serve", _ALL)
    return Fact(NAME, _in_container(image, argv, mounts), parse_help)


def of_foreign_image(image: str, *, mounts: Sequence[str] = ()) -> Fact[EngineHelp]:
    """Of an image that has vLLM's own command and nothing of ours."""
    return Fact(NAME, _in_container(image, ("vllm", "serve", _ALL), mounts), parse_help)


def _in_container(image: str, argv: Sequence[str], mounts: Sequence[str]) -> tuple[str, ...]:
    """No network and no GPU are needed to ask for help; --pull never: what is not there is not fetched."""
    command = ["docker", "run", "--rm", "--pull", "never", "--network", "none", "--env", _WIDTH]
    for path in mounts:
        command += ["--volume", f"{path}:{path}:ro"]
    program, *rest = argv
    return (*command, "--entrypoint", program, image, *rest)
