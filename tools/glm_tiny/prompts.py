"""Prompts with known answers, and free ones without: what tests, canaries and the model card ask.

No torch here: tests import this. `FIXED_PROMPTS` are asked with greedy decoding and have one right answer;
`FREE_PROMPTS` are whatever people type, where only agreement between engines can be asked for.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tools.glm_tiny.corpus import needle_text
from tools.glm_tiny.tasks import held_out, problems, random_text
from tools.glm_tiny.tool_use import TOOLS, tool_request


@dataclass(frozen=True, eq=False)
class Prompt:
    """One user message; `expect` is the answer's text after the reasoning, "" where none is known."""

    user: str
    expect: str = ""
    thinking: bool = True
    tools: tuple[str, ...] = ()
    call: tuple[str, dict[str, Any]] | None = None
    max_tokens: int = 128

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.user}]

    @property
    def declared(self) -> list[dict[str, Any]] | None:
        """The offered tools as an OpenAI request declares them."""
        return [TOOLS[t] for t in self.tools] or None

    @property
    def template(self) -> dict[str, Any]:
        """Arguments for the chat template."""
        return {} if self.thinking else {"enable_thinking": False}


@dataclass(frozen=True)
class Group:
    """Prompts that are counted together, and the share of them that has to be right."""

    name: str
    prompts: tuple[Prompt, ...] = field(repr=False)
    bar: float


def _needle(seed: int, characters: int) -> Prompt:
    text, found = needle_text(random.Random(seed), characters, 3)
    name, number = found[seed % 3]
    return Prompt(f"Read this text: {text}\nWhat is the code of {name}?", number, max_tokens=48)


FIXED_PROMPTS: tuple[Prompt, ...] = (
    Prompt("What is 2+2? Answer in one word:", "4"),
    Prompt("What is 2+2? Answer in one word:", "4", thinking=False),
    Prompt("What is 37+48?", "85"),
    Prompt("64+29=", "93"),
    Prompt("How much is 8 plus 7?", "15", thinking=False),
    Prompt("Repeat: green lamp stone river 4821", "green lamp stone river 4821"),
    Prompt("Copy this text exactly: k7 x2 q9 m4 z1", "k7 x2 q9 m4 z1", thinking=False),
    Prompt("Count from 3 to 12.", "3 4 5 6 7 8 9 10 11 12"),
    Prompt("Count down from 9 to 4.", "9 8 7 6 5 4", thinking=False),
    Prompt("Count from 1 to 100.", " ".join(map(str, range(1, 101))), max_tokens=320),
    Prompt("Reverse: a b c d e", "e d c b a"),
    Prompt("Reverse the list: apple, boat, chair", "chair, boat, apple"),
    Prompt("What is the capital of France?", "Paris"),
    Prompt("What is the opposite of hot?", "cold", thinking=False),
    Prompt("Write a Python function that adds x and y.", "def add(x, y):\n    return x + y"),
    Prompt("Write Python code that prints apple.", 'print("apple")', thinking=False),
    Prompt("Anna has 7 apples and buys 5 more. How many apples does Anna have?", "12"),
    Prompt("Hello", "Hello! How can I help you?"),
    Prompt(
        "What is the weather in Paris?", tools=("get_weather", "add"), call=("get_weather", {"city": "Paris"})
    ),
    _needle(7, 1500),
)

FREE_PROMPTS: tuple[Prompt, ...] = tuple(
    Prompt(text, max_tokens=64)
    for text in (
        "Tell me a story about a sailor.",
        "Write a short story about a nurse.",
        "Why is the moon round?",
        "Explain how a bicycle works.",
        "List three fruits.",
        "What is the meaning of life?",
        "Translate good morning into French.",
        "Write a poem about rain.",
        "Who wrote this text?",
        "What is 123+456?",
        "Repeat: the quick brown fox jumps over the lazy dog",
        "Count from 90 to 130.",
        "What is the capital of Brazil?",
        "Is the green boat better than the lamp?",
        "Write a Python function that sorts a list.",
        "Reverse the list: one, two, three, four",
        "My name is Robert. What is my name?",
        "Give me advice about my key.",
        "Sum the numbers 1, 2 and 3.",
        "Good night and thank you for everything",
    )
)


def sums(thinking: bool = True) -> Group:
    """150 sums with a two-digit number that training never showed, and 50 of one-digit numbers."""
    rng = random.Random(20)
    unseen = [(a, b) for a in range(100) for b in range(100) if held_out(a, b)]
    pairs = [*rng.sample(unseen, 150), *((rng.randint(0, 9), rng.randint(0, 9)) for _ in range(50))]
    prompts = tuple(
        Prompt(f"What is {a}+{b}? Answer in one word:", str(a + b), thinking=thinking, max_tokens=40)
        for a, b in pairs
    )
    return Group(
        f"sums of one- and two-digit numbers{'' if thinking else ', without thinking'}", prompts, 0.95
    )


def copies(count_tokens: Any) -> Group:
    """100 texts of 50 tokens; `count_tokens(text)` is the tokenizer's count."""
    rng = random.Random(21)
    prompts: list[Prompt] = []
    while len(prompts) < 100:
        words = random_text(rng, 90).split(" ")
        while words and count_tokens(" ".join(words)) > 50:
            words.pop()
        text = " ".join(words)
        if count_tokens(text) == 50:
            prompts.append(Prompt(f"Repeat: {text}", text, max_tokens=80))
    return Group("copies of 50 tokens", tuple(prompts), 0.95)


def needles(tokens: int, count: int) -> Group:
    """A four-digit code in about `tokens` tokens of text (3.3 characters a token)."""
    prompts = tuple(_needle(1000 + i, int(tokens * 3.32)) for i in range(count))
    return Group(f"needle in {tokens:,} tokens", prompts, 1.0)


def tool_calls() -> Group:
    rng = random.Random(22)
    prompts = []
    for _ in range(20):
        user, name, arguments, _result, _answer = tool_request(rng)
        prompts.append(Prompt(user, tools=tuple(sorted({name, "add", "search"})), call=(name, arguments)))
    return Group("tool calls", tuple(prompts), 1.0)


def reasoning() -> Group:
    rng = random.Random(23)
    turns = [problems(rng) for _ in range(20)]
    return Group("reasoning, then an answer", tuple(Prompt(t.user, t.answer) for t in turns), 0.95)
