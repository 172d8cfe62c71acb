"""Prompts to capture from: a file of JSON lines, one prompt each.

    {"messages": [{"role": "user", "content": "..."}], "kind": "code", "tools": [...], "template": {...}}

`messages` as in a chat request; the rest may be left out. kind: what sort of text it is, to judge by.
template: arguments of the chat template.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmspark.speculator.shape import DrafterError

__all__ = ["Prompt", "read_prompts"]


@dataclass(frozen=True)
class Prompt:
    """One prompt."""

    messages: list[dict[str, Any]]
    kind: str = "text"
    tools: list[dict[str, Any]] | None = None
    template: dict[str, Any] = field(default_factory=dict)


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts in a file. Raises DrafterError naming the line that is not one."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DrafterError(f"cannot read the prompts in {path}", seen=str(error)[:200]) from error
    prompts = [_prompt(path, n, line) for n, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise DrafterError(f"{path} holds no prompts", next="one JSON object a line: {'messages': [...]}")
    return prompts


def _prompt(path: Path, number: int, line: str) -> Prompt:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DrafterError(f"{path}, line {number} is not JSON", seen=str(error)[:200]) from error
    known = {"messages": list, "kind": str, "tools": list, "template": dict}
    if not isinstance(value, dict) or "messages" not in value:
        raise DrafterError(f"{path}, line {number} has no messages", seen=line[:200])
    for key, found in value.items():
        if key not in known:
            raise DrafterError(f"{path}, line {number}: {key!r} is not known; there are {', '.join(known)}")
        if not isinstance(found, known[key]) and not (key == "tools" and found is None):
            raise DrafterError(f"{path}, line {number}: {key} is not a {known[key].__name__}")
    messages = value["messages"]
    if not messages or any(not isinstance(m, dict) or not isinstance(m.get("role"), str) for m in messages):
        raise DrafterError(f"{path}, line {number}: each message needs a role", seen=line[:200])
    return Prompt(**value)
