"""Specs for tests of the agent."""

from __future__ import annotations

from typing import Any

from glmspark.launch.node_agent.spec import Spec


def spec_data(**changes: Any) -> dict[str, Any]:
    """A spec as the control machine sends it: one rank that sleeps."""
    return {
        "version": 1,
        "id": "0123456789abcdef",
        "name": "one",
        "node": "spark1",
        "rank": 0,
        "world": 1,
        "runtime": "process",
        "argv": ["sleep", "1000"],
        "env": {},
        "env_file": {},
        "container": None,
        "secrets": {"watch": "ab" * 32, "lockstep": None, "api_key": None},
        "watch": {"listen": None, "connect": None, "silence": 8.0},
        "limits": {"stop": 5.0},
        "record": {"of": "test"},
        **changes,
    }


def spec(**changes: Any) -> Spec:
    """The same, read."""
    return Spec.parse(spec_data(**changes))


def container_spec(**changes: Any) -> Spec:
    """One whose rank is a container."""
    argv = ["sudo", "-n", "docker", "run", "-d", "--name", "x", "image", "docker", "run"]
    return spec(runtime="container", argv=argv, **changes)
