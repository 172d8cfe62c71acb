"""Facts for the catalogue of symptoms, from records, verdicts of checks, and the guard's state. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from glmspark.symptoms.facts import Facts

__all__ = ["of_checks", "of_guard", "of_json", "of_record", "of_state"]

_GROUPS = ("RDMA ", "fabric ", "path to ")
"""Checks whose names go on with an interface or a node; in the catalogue they go by the first word."""


def of_checks(verdicts: Iterable[Mapping[str, Any]]) -> Facts:
    """`check.NAME` is ok, slow, blocked or unknown, by node."""
    facts = Facts()
    for one in verdicts:
        name = str(one.get("check"))
        name = next((group.split()[0] for group in _GROUPS if name.startswith(group)), name)
        facts.add(f"check.{name}", one.get("state"), str(one.get("node") or ""))
        if name == "ssh" and one.get("state") == "blocked":
            facts.add("node.reached", False, str(one.get("node") or ""))
    return facts


def of_guard(state: Mapping[str, Any], where: str = "") -> Facts:
    """guard.level, guard.phase, guard.alert, guard.action (of its last), gpu.util and gpu.power_w."""
    facts = Facts()
    facts.add("guard.level", state.get("level"), where)
    facts.add("guard.phase", state.get("phase"), where)
    for one in _rows(state.get("alerts")):
        facts.add("guard.alert", one.get("kind"), where)
    for one in _rows(state.get("actions")):
        facts.add("guard.action", one.get("action"), where)
    readings = state.get("readings")
    for gpu in _rows(readings.get("gpu") if isinstance(readings, Mapping) else None):
        for name in ("util", "power_w", "clock_mhz"):
            facts.add(f"gpu.{name}", gpu.get(name), where)
    return facts


def of_record(record: Mapping[str, Any]) -> Facts:
    """What a deployment's record says: its state, why it ended, its canaries, the recipe's settings by the
    names that vLLM has for them."""
    facts = Facts()
    facts.add("deployment.state", record.get("state"))
    _reason(facts, record.get("reason"))
    for one in _rows(record.get("verdicts")):
        if one.get("passed") is False:
            facts.add("canary.failed", one.get("probe"))
    ranks = _rows(record.get("ranks"))
    if ranks:
        facts.add("ranks", len(ranks))
    for one in ranks:
        facts.add("rank.phase", one.get("phase"), str(one.get("node") or ""))
    recipe = record.get("recipe")
    if isinstance(recipe, Mapping):
        _recipe(facts, recipe)
    return facts


def _reason(facts: Facts, reason: object) -> None:
    if isinstance(reason, Mapping):
        for name in ("signal", "exit_code", "kind", "symptom"):
            facts.add(f"reason.{name}", reason.get(name), str(reason.get("node") or ""))


def _recipe(facts: Facts, recipe: Mapping[str, Any]) -> None:
    engine, layout = _part(recipe, "engine"), _part(recipe, "layout")
    facts.add("recipe.link", _part(recipe, "needs").get("link"))
    for name, value in _part(engine, "args").items():
        facts.add(f"arg.{name}", value)
        if isinstance(value, Mapping):
            for inner, one in value.items():
                facts.add(f"arg.{name}.{inner}", one)
    for name in ("enforce_eager", "max_num_seqs", "dtype", "max_model_len"):
        facts.add(f"arg.{name}", engine.get(name))
    if isinstance(layout.get("dcp"), int):
        facts.add("arg.decode_context_parallel_size", layout["dcp"])
    draft = _part(recipe, "draft")
    facts.add("arg.speculative_config.method", draft.get("method"))
    facts.add("arg.speculative_config.num_speculative_tokens", draft.get("tokens"))
    for name, value in _part(engine, "env").items():
        facts.add(f"env.{name}", str(value))


def of_state(state: Mapping[str, Any]) -> Facts:
    """What a node's agent says of its rank: why it ended, and why it was started again."""
    facts, node = Facts(), str(state.get("node") or "")
    reason = state.get("reason")
    if isinstance(reason, Mapping):
        _reason(facts, {**reason, "node": node})
    for one in _rows(state.get("restarts")):
        cause = one.get("cause")
        if isinstance(cause, Mapping):
            facts.add("reason.kind", cause.get("kind"), node)
    return facts


def of_json(value: object, where: str = "") -> Facts:
    """Facts of a JSON file of ours, known by what is in it; none of any other."""
    if not isinstance(value, Mapping):
        return Facts()
    if isinstance(value.get("verdicts"), Sequence) and "recipe" not in value:
        return of_checks(_rows(value["verdicts"]))
    if "level" in value and "readings" in value:
        return of_guard(value, str(value.get("node") or where))
    if "recipe" in value and "ranks" in value:
        return of_record(value)
    if "rank" in value and "state" in value:
        return of_state(value)
    if "what" in value and "kind" in value:  # cause.json of an evidence directory
        facts = Facts()
        _reason(facts, value)
        return facts
    return Facts()


def _part(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, Mapping) else {}


def _rows(value: object) -> list[Mapping[str, Any]]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return []
    return [one for one in value if isinstance(one, Mapping)]
