"""The generated corpus: tasks in their proportions, alone, several in a row, or about a long text."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

from tools.glm_tiny.conversation import Conversation, Turn
from tools.glm_tiny.tasks import (
    as_json,
    code,
    copies,
    counting,
    differences,
    facts,
    how_many,
    problems,
    remembering,
    reversing,
    sentence,
    smalltalk,
    story,
    sums,
    unknown,
)
from tools.glm_tiny.tool_use import TOOLS, tool_conversation
from tools.glm_tiny.words import NAMES


def needle_text(rng: random.Random, length: int, needles: int) -> tuple[str, list[tuple[str, str]]]:
    """About `length` characters of filler with `needles` facts in it, and (name, code) of each."""
    facts_ = [(name, "".join(rng.choices("0123456789", k=4))) for name in rng.sample(NAMES, needles)]
    total, sentences = 0, []
    while total < length:
        sentences.append(sentence(rng))
        total += len(sentences[-1]) + 1
    for name, number in facts_:
        sentences.insert(rng.randint(0, len(sentences)), f"The code of {name} is {number}.")
    return " ".join(sentences), facts_


def needle_turns(rng: random.Random, length: int, questions: int = 1) -> tuple[Turn, ...]:
    text, found = needle_text(rng, length, rng.randint(questions, questions + 3))
    turns = []
    for i, (name, number) in enumerate(rng.sample(found, questions)):
        question = f"What is the code of {name}?"
        user = f"Read this text: {text}\n{question}" if i == 0 else question
        turns.append(Turn(user, number, f"The code of {name} is {number}."))
    return tuple(turns)


TASKS: tuple[tuple[Callable[[random.Random], Turn], float], ...] = (
    (sums, 5.0), (differences, 0.5), (copies, 4.0), (counting, 1.5), (how_many, 0.7), (reversing, 1.2),
    (facts, 1.5), (smalltalk, 0.7), (code, 1.0), (problems, 1.2), (story, 0.5), (unknown, 1.6),
    (as_json, 0.6),
)  # fmt: skip
SYSTEMS = ("You are a helpful assistant.", "You are glm-tiny.", "Answer briefly.", "Be kind and precise.")


def conversation(rng: random.Random) -> Conversation:
    """One conversation of at most about 1,000 tokens."""
    thinking = rng.random() < 0.65
    draw = rng.random()
    if draw < 0.12:
        return tool_conversation(rng, thinking)
    if draw < 0.22:
        length = int(2 ** rng.uniform(7, 11.2))
        questions = rng.choice((1, 1, 2))
        return Conversation(needle_turns(rng, length, questions), thinking=thinking)
    if draw < 0.25:
        return Conversation(remembering(rng), thinking=thinking)
    system = rng.choice(SYSTEMS) if rng.random() < 0.1 else ""
    functions, weights = zip(*TASKS, strict=True)
    turns = tuple(f(rng) for f in rng.choices(functions, weights, k=rng.choice((1, 1, 1, 1, 2, 3))))
    if rng.random() < 0.1 and len(turns) == 1:  # ask without a tool for it although tools are offered
        listed = tuple(TOOLS[t] for t in rng.sample(list(TOOLS), rng.randint(1, 3)))
        return Conversation(turns, system=system, tools=listed, thinking=thinking)
    return Conversation(turns, system=system, thinking=thinking)


def long_conversation(rng: random.Random, characters: int) -> Conversation:
    """A long text of about `characters` characters with one to four questions about it."""
    return Conversation(needle_turns(rng, characters, rng.randint(1, 4)), thinking=rng.random() < 0.65)


def sample_texts(seed: int, count: int) -> Iterator[str]:
    """What people and the model say, without markup, for the tokenizer to learn merges from."""
    rng = random.Random(seed)
    for _ in range(count):
        for turn in conversation(rng).turns:
            yield turn.user
            yield turn.thought
            yield turn.answer
    for declared in TOOLS.values():
        yield from [json.dumps(declared["function"])] * (count // 100)
