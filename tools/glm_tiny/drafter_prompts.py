"""Prompts for glm-tiny's drafter: its own corpus, answers left out, a JSON line each.

python -m tools.glm_tiny.drafter_prompts FILE --count 8000 --seed 1
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.glm_tiny.conversation import Conversation, Turn
from tools.glm_tiny.corpus import TASKS, needle_turns
from tools.glm_tiny.tasks import remembering
from tools.glm_tiny.tool_use import tool_conversation

MORE = {"story": 2.0, "smalltalk": 1.5, "unknown": 1.0}
"""Tasks that the drafter's corpus has more often than glm-tiny's: what is asked least is drafted worst."""


def messages(conversation: Conversation) -> list[dict[str, Any]]:
    """The conversation up to the last answer, as a chat request has it."""
    found: list[dict[str, Any]] = []
    if conversation.system:
        found.append({"role": "system", "content": conversation.system})
    last = len(conversation.turns) - 1
    for number, turn in enumerate(conversation.turns):
        found.append({"role": "tool" if turn.tool_result else "user", "content": turn.user})
        if number == last:
            return found
        said: dict[str, Any] = {"role": "assistant", "content": turn.answer}
        if turn.call:
            name, arguments = turn.call
            function = {"name": name, "arguments": arguments}
            said["tool_calls"] = [{"id": f"call-{number}", "type": "function", "function": function}]
        found.append(said)
    return found


def kinds(rng: random.Random) -> Iterator[tuple[str, Conversation]]:
    """Endless conversations with what sort they are."""
    functions, weights = zip(*TASKS, strict=True)
    weights = tuple(w * MORE.get(f.__name__, 1.0) for f, w in zip(functions, weights, strict=True))
    while True:
        thinking = rng.random() < 0.65
        draw = rng.random()
        if draw < 0.12:
            yield "tools", tool_conversation(rng, thinking)
        elif draw < 0.2:
            length = int(2 ** rng.uniform(7, 12))
            yield "needle", Conversation(needle_turns(rng, length), thinking=thinking)
        elif draw < 0.23:
            yield "remembering", Conversation(remembering(rng), thinking=thinking)
        else:
            task = rng.choices(functions, weights)[0]
            turns: tuple[Turn, ...] = (task(rng),)
            yield task.__name__, Conversation(turns, thinking=thinking)


def lines(count: int, seed: int) -> Iterator[str]:
    """Prompts as `glmspark speculator capture` reads them."""
    made = kinds(random.Random(seed))
    for _ in range(count):
        kind, conversation = next(made)
        value: dict[str, Any] = {"messages": messages(conversation), "kind": kind}
        if conversation.tools:
            value["tools"] = list(conversation.tools)
        if not conversation.thinking:
            value["template"] = {"enable_thinking": False}
        yield json.dumps(value, ensure_ascii=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.file.write_text("".join(f"{line}\n" for line in lines(args.count, args.seed)), encoding="utf-8")


if __name__ == "__main__":
    main()
