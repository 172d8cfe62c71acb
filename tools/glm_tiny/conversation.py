"""Conversations, and the text the chat template makes of them, split where the model takes over."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Turn:
    """A user's message and the assistant's answer. With `tool_result` it is a tool's message instead."""

    user: str
    answer: str
    thought: str = ""
    call: tuple[str, dict[str, Any]] | None = None
    tool_result: bool = False


@dataclass(frozen=True)
class Conversation:
    turns: tuple[Turn, ...]
    system: str = ""
    tools: tuple[dict[str, Any], ...] = ()
    thinking: bool = True


@dataclass
class Rendered:
    """Text pieces of a conversation; `learn[i]` says whether the model is to produce piece i."""

    pieces: list[str] = field(default_factory=list)
    learn: list[bool] = field(default_factory=list)

    def add(self, piece: str, learn: bool) -> None:
        self.pieces.append(piece)
        self.learn.append(learn)


def render(conversation: Conversation) -> Rendered:
    """The chat template's text, split where the model takes over.

    Earlier answers stand without their reasoning, as the template shows them to the next turn. That is also
    what a prompt without thinking looks like, so they are learnt as well; the last answer is learnt with its
    reasoning if the conversation is one with thinking.
    """
    out = Rendered()
    head = "[gMASK]<sop>"
    if conversation.tools:
        lines = "".join(json.dumps(t["function"], ensure_ascii=False) + "\n" for t in conversation.tools)
        head += "<|system|># Tools\n" + lines
    if conversation.system:
        head += "<|system|>" + conversation.system
    out.add(head, False)
    last = len(conversation.turns) - 1
    last_user = max(i for i, t in enumerate(conversation.turns) if not t.tool_result)
    for i, turn in enumerate(conversation.turns):
        role = "<|observation|>" if turn.tool_result else "<|user|>"
        out.add(role, i > 0)
        said = f"<tool_response>{turn.user}</tool_response>" if turn.tool_result else turn.user
        out.add(said + "<|assistant|>", False)
        if turn.thought and conversation.thinking and i >= last_user:
            out.add("<think>", False)
            out.add(turn.thought + "</think>", True)
        else:
            out.add("</think>", False)
        out.add(turn.answer + (call_text(*turn.call) if turn.call else ""), True)
    out.add("<|observation|>" if conversation.turns[last].call else "<|user|>", True)
    return out


def call_text(name: str, arguments: dict[str, Any]) -> str:
    """A tool call as GLM-4.7 and later write it: no white space between the tags."""
    shown = ((k, v if isinstance(v, str) else json.dumps(v)) for k, v in arguments.items())
    pairs = "".join(f"<arg_key>{k}</arg_key><arg_value>{v}</arg_value>" for k, v in shown)
    return f"<tool_call>{name}{pairs}</tool_call>"
