"""Facts that a vLLM log states of itself: version, arguments, NCCL's version, how many drafts it takes."""

from __future__ import annotations

import ast
import re

from glmspark.symptoms.facts import Facts

__all__ = ["LogFacts"]

_LONGEST = 20_000  # characters of a line that is read
_ARGUMENTS = "non-default args: "
_VERSION = re.compile(r"\bV1 LLM engine \(v([0-9][0-9A-Za-z.+-]{0,40})\)")
_NCCL = re.compile(r"\b(?:vLLM is using nccl==|NCCL version )(\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)")
_BACKEND = re.compile(r"\bUsing (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]{2,60}) (?:attention )?backend\b")
_MOE = re.compile(r"\bUsing '?([A-Za-z0-9_ ]{2,40}?)'? (?:\w{1,20} )?MoE backend\b")
_WORLD = re.compile(r"\bworld_size=(\d{1,5}) rank=(\d{1,5})\b")
_NET = re.compile(r"\bNCCL INFO Using network (\w{1,20})")
_ACCEPTED = re.compile(
    r"Mean acceptance length: ([\d.]{1,8}).{0,200}?Avg Draft acceptance rate: ([\d.]{1,6})%"
)
_THROUGHPUT = re.compile(
    r"Avg generation throughput: ([\d.]{1,9}) tokens/s, Running: (\d{1,6}) reqs, Waiting: (\d{1,6}) reqs"
)
_SIGNS = (
    "LLM engine (v",
    "nccl==",
    "NCCL ",
    " backend",
    "world_size=",
    "Mean acceptance",
    "generation throughput",
    _ARGUMENTS,
)
_ENOUGH = 3  # readings in a row before a rate counts


class LogFacts:
    """Collects facts from lines. Rates are those of the last few readings, when the engine was warm."""

    signs = tuple(sign.encode() for sign in _SIGNS)

    def __init__(self) -> None:
        self.facts = Facts()
        self._accepted: list[float] = []
        self._idle = 0

    def line(self, source: str, text: str) -> None:  # noqa: ARG002 - every observer is told
        """Take a line of a source."""
        if len(text) > _LONGEST or not any(sign in text for sign in _SIGNS):
            return
        for name, pattern in (("vllm", _VERSION), ("nccl", _NCCL), ("log.network", _NET)):
            if found := pattern.search(text):
                self.facts.add(name, found[1])
        if found := _BACKEND.search(text):
            self.facts.add("attention", found[1])
        if found := _MOE.search(text):
            self.facts.add("moe backend", found[1].lower().replace(" ", "_"))
        if found := _WORLD.search(text):
            self.facts.add("ranks", int(found[1]))
        if (at := text.find(_ARGUMENTS)) >= 0:
            self._arguments(text[at + len(_ARGUMENTS) :])
        if found := _ACCEPTED.search(text):
            self._rate(float(found[1].rstrip(".") or 0))
        if found := _THROUGHPUT.search(text):
            self._stalls(float(found[1].rstrip(".") or 0), int(found[2]))

    def _arguments(self, text: str) -> None:
        """vLLM prints them as a Python mapping; nothing of it is run."""
        try:
            value = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return
        if isinstance(value, dict):
            for name, one in value.items():
                self.facts.add(f"arg.{name}", one)
                if isinstance(one, dict):
                    for inner, two in one.items():
                        self.facts.add(f"arg.{name}.{inner}", two)

    def _rate(self, length: float) -> None:
        self._accepted.append(length)
        if len(self._accepted) >= _ENOUGH:
            self.facts.known.pop("draft.length", None)
            self.facts.add("draft.length", round(sum(self._accepted[-_ENOUGH:]) / _ENOUGH, 2))

    def _stalls(self, rate: float, running: int) -> None:
        """Readings in a row, 10 s apart, with requests running and nothing generated."""
        self._idle = self._idle + 1 if running and rate == 0 else 0
        if self._idle >= _ENOUGH:
            self.facts.known.pop("log.stalled readings", None)
            self.facts.add("log.stalled readings", self._idle)
