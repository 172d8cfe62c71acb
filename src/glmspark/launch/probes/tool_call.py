"""A tool call, parsed: the right function with the right arguments, and none of its markup in the content."""

from __future__ import annotations

import json

from glmspark.config.canaries import ToolCallCanary
from glmspark.launch.canaries import Finding, Probe, Target, Wave, shown


async def run(target: Target, canary: ToolCallCanary) -> Finding:
    """Offer one tool and check the one call that comes back."""
    tool = {
        "type": "function",
        "function": {
            "name": canary.tool.name,
            "description": canary.tool.description,
            "parameters": canary.tool.parameters,
        },
    }
    answer = await target.ask(
        canary.prompt, max_tokens=canary.max_tokens, thinking=canary.thinking, tools=[tool]
    )
    if not answer.tool_calls:
        return Finding(False, f"no tool call, content {shown(answer.text)}")
    if len(answer.tool_calls) > 1:
        return Finding(False, f"{len(answer.tool_calls)} tool calls instead of one")
    (name, text), wanted = answer.tool_calls[0], canary.arguments
    try:
        arguments = json.loads(text)
    except ValueError:
        return Finding(False, f"arguments are not JSON: {shown(text)}")
    if name != canary.tool.name or arguments != wanted:
        return Finding(
            False, f"called {name}({shown(text)}), expected {canary.tool.name}({json.dumps(wanted)})"
        )
    if "<tool_call>" in answer.text:
        return Finding(False, f"markup of the call left in the content: {shown(answer.text)}")
    return Finding(True, f"{name}({text})")


PROBE = Probe(
    "tool_call",
    Wave.TOGETHER,
    run,
)
