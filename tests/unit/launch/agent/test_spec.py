"""What the control machine sends, read and refused."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.launch.node_agent.files import Trouble
from glmspark.launch.node_agent.spec import Spec
from tests.unit.launch.agent.specs import container_spec, spec, spec_data

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def test_a_spec_is_read() -> None:
    read = spec(watch={"listen": "198.18.0.1:29700", "connect": None}, scratch="/tmp/glmspark-x")
    assert (read.rank, read.world, read.container) == (0, 1, False)
    assert read.listen == ("198.18.0.1", 29700)
    assert (read.silence, read.join, read.stop) == (8.0, 60.0, 5.0)
    assert read.secrets == {"watch": "ab" * 32}
    assert spec(watch={"connect": "[fd00::1]:29700"}).connect == ("fd00::1", 29700)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"version": 2}, "version 1"),
        ({"argv": []}, "argv"),
        ({"argv": ["a\0b"]}, "argv"),
        ({"rank": "0"}, "rank"),
        ({"world": True}, "world"),
        ({"name": None}, "name"),
        ({"runtime": "podman"}, "runtime"),
        ({"runtime": "container"}, "runtime"),
        ({"env": {"A": 1}}, "env"),
        ({"env_file": {"A": "b\nC=d"}}, "line end"),
        ({"watch": {"listen": "198.18.0.1"}}, "watch address"),
        ({"scratch": "/home/me"}, "scratch"),
        ({"scratch": "glmspark-x"}, "scratch"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(Trouble, match=named):
        Spec.parse(spec_data(**changes))


@given(st.sampled_from(sorted(spec_data())), JSON)
def test_nothing_else_is_raised(field: str, value: Any) -> None:
    with contextlib.suppress(Trouble):
        Spec.parse(spec_data(**{field: value}))


def test_a_container_is_labelled_by_the_agent() -> None:
    read = container_spec()
    assert read.docker == ["sudo", "-n", "docker"]
    assert read.argv_labelled("glmspark.home=/d") == [
        *("sudo", "-n", "docker", "run", "--label", "glmspark.home=/d", "-d", "--name", "x", "image"),
        *("docker", "run"),
    ]
    assert spec().argv_labelled("glmspark.home=/d") == ["sleep", "1000"]


def test_a_process_gets_its_own_environment() -> None:
    inherited = {"PATH": "/bin", "RANK": "7", "VLLM_API_KEY": "of the login", "HOME": "/home/me"}
    secrets = {"watch": "00", "api_key": "k"}
    head = spec(env={"A": "1", "PATH": "/opt/bin"}, secrets=secrets).rank_env(Path("/d"), inherited)
    assert head == {
        "PATH": "/opt/bin",
        "HOME": "/home/me",
        "A": "1",
        "VLLM_API_KEY": "k",
        "GLMSPARK_DEPLOYMENT": "0123456789abcdef",
        "GLMSPARK_DEPLOYMENT_DIR": "/d",
    }
    follower = spec(rank=1, world=2, secrets=secrets).rank_env(Path("/d"), inherited)
    assert "VLLM_API_KEY" not in follower
