"""Tools, and requests that want one."""

from __future__ import annotations

import random
from typing import Any

from tools.glm_tiny.conversation import Conversation, Turn
from tools.glm_tiny.words import CAPITALS, COLOURS, NAMES, THINGS


def tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    """An OpenAI function declaration; `parameters` maps names to JSON types."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {k: {"type": t} for k, t in parameters.items()},
                "required": list(parameters),
            },
        },
    }


TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": tool("get_weather", "Weather of a city", city="string"),
    "get_time": tool("get_time", "Time in a city", city="string"),
    "add": tool("add", "Add two numbers", a="integer", b="integer"),
    "search": tool("search", "Search the web", query="string"),
    "send_mail": tool("send_mail", "Send a mail", to="string", text="string"),
    "set_lamp": tool("set_lamp", "Set a lamp's colour", colour="string"),
}


def tool_request(rng: random.Random) -> tuple[str, str, dict[str, Any], str, str]:
    """(user text, tool, arguments, tool's result, final answer)."""
    name = rng.choice(list(TOOLS))
    city = rng.choice(list(CAPITALS.values()))
    if name == "get_weather":
        degrees, sky = rng.randint(-9, 35), rng.choice(("sunny", "cloudy", "rainy"))
        ask = rng.choice(
            ("What is the weather in {}?", "How is the weather in {}?", "What's the weather like in {}?")
        )
        return (
            ask.format(city),
            name,
            {"city": city},
            f"{sky}, {degrees} C",
            f"It is {sky} in {city}, {degrees} C.",
        )
    if name == "get_time":
        clock = f"{rng.randint(0, 23)}:{rng.randint(10, 59)}"
        return f"What time is it in {city}?", name, {"city": city}, clock, f"It is {clock} in {city}."
    if name == "add":
        a, b = rng.randint(100, 999), rng.randint(100, 999)
        return f"Use a tool to add {a} and {b}.", name, {"a": a, "b": b}, str(a + b), f"The sum is {a + b}."
    if name == "search":
        query = f"{rng.choice(COLOURS)} {rng.choice(THINGS)}"
        n = rng.randint(2, 99)
        return f"Search the web for {query}.", name, {"query": query}, f"{n} results", f"I found {n} results."
    if name == "send_mail":
        who, text = rng.choice(NAMES), f"the {rng.choice(THINGS)} is {rng.choice(COLOURS)}"
        return (
            f"Send a mail to {who}: {text}",
            name,
            {"to": who, "text": text},
            "sent",
            f"I sent the mail to {who}.",
        )
    colour = rng.choice(COLOURS)
    return f"Make the lamp {colour}.", name, {"colour": colour}, "ok", f"The lamp is {colour} now."


def tool_conversation(rng: random.Random, thinking: bool) -> Conversation:
    user, name, arguments, result, answer = tool_request(rng)
    offered = {name, *rng.sample(list(TOOLS), rng.randint(0, 3))}
    listed = [TOOLS[t] for t in TOOLS if t in offered]
    rng.shuffle(listed)
    turns = [Turn(user, "", f"I use {name}.", call=(name, arguments))]
    if rng.random() < 0.4:
        turns.append(Turn(result, answer, "The tool has answered.", tool_result=True))
    return Conversation(tuple(turns), tools=tuple(listed), thinking=thinking)
