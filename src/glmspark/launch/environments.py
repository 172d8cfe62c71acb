"""The Python environment on every node: there, with an engine, the same everywhere."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from glmspark.errors import GlmsparkError
from glmspark.nodes.facts.account import Account
from glmspark.nodes.facts.engine import EngineVersions, engine
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.survey import survey
from glmspark.nodes.transport import NodeError

__all__ = ["judge_environments", "look_at_environments", "venv_at"]

_STEP = "look at the environment"


def venv_at(venv: str, account: Account) -> str:
    """An environment's directory on a node: ~ is the SSH user's home."""
    return posixpath.join(account.home, venv[2:]) if venv.startswith("~/") else venv


async def look_at_environments(
    fleet: Fleet, venv: str, accounts: Mapping[str, Account]
) -> dict[str, EngineVersions]:
    """What engine each node's environment has. Raises GlmsparkError naming the node where there is none."""
    facts = {name: engine(f"{venv_at(venv, account)}/bin/python") for name, account in accounts.items()}
    asked = await fleet.each(lambda node: survey(node, [facts[node.host]], timeout=60))
    found = {}
    for name, one in asked.items():
        if isinstance(one, NodeError):
            raise one
        versions = one.get(facts[name])
        if versions is None:
            raise GlmsparkError(
                f"there is no Python environment that runs at {venv}",
                host=name,
                step=_STEP,
                seen=one.problem(facts[name]),
                next="make it there (`make serve` in a checkout), or correct runtime.venv in cluster.yaml",
            )
        found[name] = versions
    judge_environments(venv, found)
    return found


def judge_environments(venv: str, found: Mapping[str, EngineVersions]) -> None:
    """Raises GlmsparkError unless every node's environment has glmspark and vLLM, of the same versions."""
    first = next(iter(found))
    for name, one in found.items():
        lacking = [what for what, version in vars(one).items() if version is None]
        if lacking:
            raise GlmsparkError(
                f"{venv} has no {' and no '.join(lacking)}",
                host=name,
                step=_STEP,
                next=f"install it there: {venv}/bin/pip install 'glmspark[cpu]'",
            )
        for what, version in vars(one).items():
            if version != getattr(found[first], what):
                raise GlmsparkError(
                    f"{what} is {version} here and {getattr(found[first], what)} on {first}",
                    host=name,
                    step=_STEP,
                    next="make the environments alike: ranks of different versions do not understand another",
                )
