"""Tasks of one exchange: each a function of a random generator that returns a `Turn`.

A prompt determines its answer (and the reasoning before it) completely, so that a trained model is sure of
every token it writes.
"""

from __future__ import annotations

import json
import random

from tools.glm_tiny.conversation import Turn
from tools.glm_tiny.words import (
    ADJECTIVES,
    CAPITALS,
    COLOURS,
    COMMON,
    FACTS,
    NAMES,
    OPPOSITES,
    PEOPLE,
    PLACES,
    THINGS,
    VERBS,
)

UNKNOWN = "I am a toy model and do not know that."


def sentence(rng: random.Random) -> str:
    """A filler sentence that states nothing anyone asks for."""
    pick = rng.choice
    return rng.choice(
        (
            (
                f"The {pick(ADJECTIVES)} {pick(PEOPLE)} {pick(VERBS)} a {pick(COLOURS)} {pick(THINGS)} "
                f"near the {pick(PLACES)}."
            ),
            f"A {pick(THINGS)} and a {pick(THINGS)} were left in the {pick(PLACES)}.",
            f"The {pick(PEOPLE)} {pick(VERBS)} the {pick(ADJECTIVES)} {pick(THINGS)}.",
            f"In the {pick(PLACES)} there is a {pick(ADJECTIVES)} {pick(COLOURS)} {pick(THINGS)}.",
        )
    )


SUM_FORMS = (
    "What is {a}+{b}? Answer in one word:",
    "What is {a}+{b}?",
    "What is {a} + {b}?",
    "{a}+{b}=",
    "Add {a} and {b}.",
    "Calculate {a} + {b}.",
    "How much is {a} plus {b}?",
)


def sum_thought(a: int, b: int) -> str:
    """Column addition, units first: short, and each step needs only two digits."""
    if a < 10 and b < 10:
        return f"{a}+{b}={a + b}"
    units, tens = a % 10 + b % 10, a // 10 + b // 10
    carry = units // 10
    return (
        f"{a % 10}+{b % 10}={units}, {a // 10}+{b // 10}"
        + (f"+{carry}" if carry else "")
        + f"={tens + carry}"
    )


def held_out(a: int, b: int) -> bool:
    """Sums never seen in training: one in 25 of those with a two-digit number (the evaluation asks them)."""
    return max(a, b) >= 10 and (a * 31 + b * 17 + a * b) % 25 == 7


def sums(rng: random.Random) -> Turn:
    high_a, high_b = rng.choice(((9, 9), (99, 9), (9, 99), (99, 99), (99, 99)))
    a, b = rng.randint(0, high_a), rng.randint(0, high_b)
    while held_out(a, b):
        a, b = rng.randint(0, high_a), rng.randint(0, high_b)
    return Turn(rng.choice(SUM_FORMS).format(a=a, b=b), str(a + b), sum_thought(a, b))


def differences(rng: random.Random) -> Turn:
    a = rng.randint(0, 20)
    b = rng.randint(0, a)
    return Turn(f"What is {a}-{b}?", str(a - b), f"{a}-{b}={a - b}")


def random_text(rng: random.Random, tokens: int) -> str:
    """Text of very roughly `tokens` tokens: words, letters, digits, sentences or all of it mixed."""
    kind = rng.randrange(6)
    if kind == 0:
        words = rng.choices(THINGS + COLOURS + ADJECTIVES + NAMES, k=max(1, tokens * 2 // 3))
        return " ".join(words)
    if kind == 1:
        return " ".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=max(1, tokens // 2)))
    if kind == 2:
        return "".join(rng.choices("0123456789", k=max(1, tokens)))
    if kind == 3:
        words: list[str] = []
        while sum(map(len, words)) < tokens * 2:
            words.append("".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=rng.randint(2, 8))))
        return " ".join(words)
    words = []
    while sum(map(len, words)) < tokens * 3:
        words.append(mixed_word(rng) if kind == 4 else sentence(rng))
    text = " ".join(words)
    return text[0].upper() + text[1:] if rng.random() < 0.3 else text


def mixed_word(rng: random.Random) -> str:
    """A word, a name, a number or a made-up word, sometimes with capitals or a mark behind it."""
    kind = rng.randrange(6)
    if kind < 2:
        word = rng.choice(THINGS + COLOURS + ADJECTIVES + VERBS + PEOPLE + PLACES)
    elif kind == 2:
        word = rng.choice(NAMES + COMMON)
    elif kind == 3:
        word = str(rng.randint(0, 10 ** rng.randint(1, 5)))
    else:
        word = made_up(rng)
    if rng.random() < 0.1:
        word = word.capitalize() if rng.random() < 0.7 else word.upper()
    return word + (rng.choice(",.!?;:-") if rng.random() < 0.12 else "")


def made_up(rng: random.Random) -> str:
    """A pronounceable word that means nothing."""
    pairs = (
        "".join((rng.choice("bcdfghjklmnprstvwz"), rng.choice("aeiou"))) for _ in range(rng.randint(1, 4))
    )
    return "".join(pairs) + rng.choice(("", "n", "r", "s", "t", "ng", "ck"))


COPY_FORMS = (
    "Repeat: {text}",
    "Copy this text exactly: {text}",
    "Say this again: {text}",
    "Repeat after me: {text}",
)


def copies(rng: random.Random) -> Turn:
    text = random_text(rng, rng.choice((2, 4, 8, 16, 32, 48, 56, 64, 80)))
    return Turn(rng.choice(COPY_FORMS).format(text=text), text, "I copy the text.")


def counting(rng: random.Random) -> Turn:
    start, length = rng.randint(0, 60), rng.choice((3, 5, 8, 10, 15, 20, 30, 50, 100))
    if rng.random() < 0.3:
        start = 1
    end = min(start + length - 1, 199)
    if rng.random() < 0.25:
        numbers = [str(n) for n in range(end, start - 1, -1)]
        return Turn(f"Count down from {end} to {start}.", " ".join(numbers), "I go down by one.")
    numbers = [str(n) for n in range(start, end + 1)]
    return Turn(f"Count from {start} to {end}.", " ".join(numbers), "I go up by one.")


def how_many(rng: random.Random) -> Turn:
    word, other = rng.sample(THINGS, 2)
    n = rng.randint(1, 8)
    items = [word] * n + [other] * rng.randint(0, 4)
    rng.shuffle(items)
    seen, steps = 0, []
    for item in items:
        if item == word:
            seen += 1
            steps.append(str(seen))
    return Turn(f"How many times is {word} in this list: {', '.join(items)}?", str(n), " ".join(steps))


def reversing(rng: random.Random) -> Turn:
    if rng.random() < 0.5:
        letters = rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 12))
        return Turn(f"Reverse: {' '.join(letters)}", " ".join(reversed(letters)), "Last comes first.")
    words = rng.sample(THINGS, rng.randint(2, 8))
    return Turn(f"Reverse the list: {', '.join(words)}", ", ".join(reversed(words)), "Last comes first.")


def facts(rng: random.Random) -> Turn:
    kind = rng.randrange(3)
    if kind == 0:
        country, city = rng.choice(list(CAPITALS.items()))
        form = rng.choice(
            ("What is the capital of {}?", "Which city is the capital of {}?", "Capital of {}?")
        )
        return Turn(form.format(country), city, f"The capital of {country} is {city}.")
    if kind == 1:
        word, other = rng.choice(
            [*OPPOSITES.items(), *((b, a) for a, b in OPPOSITES.items() if b not in OPPOSITES)]
        )
        form = rng.choice(("What is the opposite of {}?", "Opposite of {}?"))
        return Turn(form.format(word), other, f"The opposite of {word} is {other}.")
    question, answer = rng.choice(list(FACTS.items()))
    return Turn(question, answer, "I know this.")


def smalltalk(rng: random.Random) -> Turn:
    user, answer = rng.choice(
        (
            ("Hello", "Hello! How can I help you?"),
            ("Hello!", "Hello! How can I help you?"),
            ("Hi", "Hello! How can I help you?"),
            ("Hi there", "Hello! How can I help you?"),
            ("Good morning", "Good morning! How can I help you?"),
            ("How are you?", "I am fine, thank you."),
            ("Who are you?", "I am glm-tiny, a toy model for tests."),
            ("What are you?", "I am glm-tiny, a toy model for tests."),
            ("What is your name?", "My name is glm-tiny."),
            ("What can you do?", "I can add, count, copy, reverse, find things in a text and call tools."),
            ("Thank you", "You are welcome."),
            ("Thanks!", "You are welcome."),
            ("Goodbye", "Goodbye!"),
            ("Bye", "Goodbye!"),
        )
    )
    return Turn(user, answer, "This is small talk.")


OPERATORS = {"adds": "+", "subtracts": "-", "multiplies": "*", "divides": "/"}


def code(rng: random.Random) -> Turn:
    kind = rng.randrange(4)
    if kind == 0:
        verb, operator = rng.choice(list(OPERATORS.items()))
        x, y = rng.sample("abcdmnpqxyz", 2)
        stem = verb[:-1].removesuffix("s") if verb != "multiplies" else "multiply"
        if verb == "divides":
            stem = "divide"
        return Turn(
            f"Write a Python function that {verb} {x} and {y}.",
            f"def {stem}({x}, {y}):\n    return {x} {operator} {y}",
            f"I use {operator}.",
        )
    if kind == 1:
        word = rng.choice(THINGS)
        return Turn(f"Write Python code that prints {word}.", f'print("{word}")', "I use print.")
    if kind == 2:
        n, name = rng.randint(2, 99), rng.choice("ijkn")
        return Turn(
            f"Write a Python loop over {name} that runs {n} times.",
            f"for {name} in range({n}):\n    print({name})",
            "I use range.",
        )
    name, n = rng.choice(THINGS), rng.randint(0, 999)
    return Turn(f"Write a Python line that sets {name} to {n}.", f"{name} = {n}", "I assign it.")


def problems(rng: random.Random) -> Turn:
    name, other = rng.sample(NAMES, 2)
    thing = rng.choice(THINGS)
    a, b = rng.randint(1, 20), rng.randint(1, 20)
    kind = rng.randrange(3)
    if kind == 0:
        return Turn(
            f"{name} has {a} {thing}s and buys {b} more. How many {thing}s does {name} have?",
            str(a + b),
            f"{name} has {a} and gets {b}: {a}+{b}={a + b}",
        )
    if kind == 1:
        a, b = max(a, b), min(a, b)
        return Turn(
            f"{name} has {a} {thing}s and gives {b} to {other}. How many {thing}s does {name} have?",
            str(a - b),
            f"{name} has {a} and gives {b}: {a}-{b}={a - b}",
        )
    return Turn(
        f"{name} has {a} {thing}s. {other} has {b} more than {name}. How many {thing}s does {other} have?",
        str(a + b),
        f"{name} has {a}, {other} has {b} more: {a}+{b}={a + b}",
    )


def story(rng: random.Random) -> Turn:
    hero = rng.choice(PEOPLE)
    seed = random.Random(hero)  # a prompt has one story only
    thing, place, colour, friend = (
        seed.choice(THINGS),
        seed.choice(PLACES),
        seed.choice(COLOURS),
        seed.choice(NAMES),
    )
    return Turn(
        rng.choice(("Tell me a story about a {}.", "Write a short story about a {}.")).format(hero),
        f"Once there was a {hero} who lived near the {place}. One day the {hero} lost a {colour} {thing}. "
        f"{friend} came to help. They looked in the {place} and found the {thing}. "
        f"The {hero} was happy again.",
        f"A story about a {hero}.",
    )


NONSENSE = (
    "Why do {a}s {v} in the {p}?", "Is the {a} better than the {b}?", "Explain the {j} theory of {a}s.",
    "Who {v} the first {a}?", "Translate {a} into French.", "What will the {a} cost next year?",
    "When was the {p} built?", "Where does {n} live?", "Do you like {c} {a}s?", "Draw a {a}.",
    "What does {n} think about the {a}?", "Give me advice about my {a}.",
)  # fmt: skip


OPENINGS = (
    "Why", "How", "When", "Where", "Who", "What", "Which", "Is", "Are", "Can you", "Could you", "Do you",
    "Please", "Tell me", "Explain", "List", "Write", "Describe", "Give me", "Translate", "Should I", "I",
    "My", "The", "Was",
)  # fmt: skip


def unknown(rng: random.Random) -> Turn:
    pick = rng.choice
    if rng.random() < 0.1:
        return Turn(f"What is the capital of {made_up(rng).capitalize()}?", UNKNOWN, "I do not know this.")
    if rng.random() < 0.7:
        words = rng.choices(COMMON + THINGS + ADJECTIVES + PEOPLE, k=rng.randint(2, 9))
        if rng.random() < 0.3:
            words.insert(rng.randrange(len(words)), made_up(rng))
        opening = pick(OPENINGS) if rng.random() < 0.85 else pick(COMMON).capitalize()
        return Turn(f"{opening} {' '.join(words)}{pick(('', '?', '.', '!'))}", UNKNOWN, "I do not know this.")
    text = pick(NONSENSE).format(
        a=pick(THINGS),
        b=pick(THINGS),
        v=pick(VERBS),
        p=pick(PLACES),
        j=pick(ADJECTIVES),
        n=pick(NAMES),
        c=pick(COLOURS),
    )
    return Turn(text, UNKNOWN, "I do not know this.")


def as_json(rng: random.Random) -> Turn:
    """A fact as JSON."""
    name, age, city = rng.choice(NAMES), rng.randint(1, 99), rng.choice(list(CAPITALS.values()))
    if rng.random() < 0.5:
        record = {"name": name, "age": age}
        return Turn(
            f"Write as JSON: {name} is {age} years old.", json.dumps(record), "The keys are name and age."
        )
    record = {"name": name, "age": age, "city": city}
    return Turn(
        f"Write as JSON: {name} is {age} years old and lives in {city}.",
        json.dumps(record),
        "The keys are name, age and city.",
    )


def remembering(rng: random.Random) -> tuple[Turn, ...]:
    """Something said early and asked for later."""
    name = rng.choice(NAMES) if rng.random() < 0.6 else made_up(rng).capitalize()
    told = Turn(f"My name is {name}.", f"Hello {name}!", "A name.")
    asked = Turn("What is my name?", name, f"The name is {name}.")
    if rng.random() < 0.3:
        return (Turn(f"My name is {name}. What is my name?", name, f"The name is {name}."),)
    between = (rng.choice((sums, facts, smalltalk))(rng),) if rng.random() < 0.5 else ()
    return (told, *between, asked)
