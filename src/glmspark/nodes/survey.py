"""All facts of a node in one round trip.

The commands are argv lists; they are quoted once, here, into a script that the node's `sh` reads from its
standard input, and each command's output comes back between marks that no command can print by chance.
"""

from __future__ import annotations

import re
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from glmspark.nodes.facts import Fact
from glmspark.nodes.facts.clock import CLOCK, offset
from glmspark.nodes.node import Node, failed
from glmspark.nodes.transport import NodeError

T = TypeVar("T")
EACH_SECONDS = 20
"""How long one command of a survey may take."""


@dataclass(frozen=True)
class Reading(Generic[T]):
    """A fact as it was found: a value, or why there is none."""

    value: T | None
    problem: str | None = None


class Facts:
    """What is known of one node. skew: how far its clock is ahead of ours, and how sure that is (seconds)."""

    def __init__(
        self,
        node: str,
        readings: Mapping[str, Reading[Any]],
        *,
        skew: tuple[float, float] | None = None,
        seconds: float = 0.0,
    ) -> None:
        self.node = node
        self.skew = skew
        self.seconds = seconds
        self._readings = dict(readings)

    def get(self, fact: Fact[T]) -> T | None:
        """The value, None where it could not be read."""
        reading = self._readings.get(fact.name)
        return None if reading is None else cast("T | None", reading.value)

    def problem(self, fact: Fact[Any]) -> str | None:
        """Why there is no value, None where there is one."""
        reading = self._readings.get(fact.name)
        return "not asked for" if reading is None else reading.problem

    def with_(self, more: Mapping[str, Reading[Any]]) -> Facts:
        """The same with further readings."""
        return Facts(self.node, {**self._readings, **more}, skew=self.skew, seconds=self.seconds)

    def readings(self) -> Mapping[str, Reading[Any]]:
        """All readings by the fact's name."""
        return self._readings


def script(facts: Sequence[Fact[Any]], mark: str, *, each: int = EACH_SECONDS) -> str:
    """The text that `sh` reads: every command with a time limit of its own, its output followed by a mark.

    The mark's line carries the command's number and exit code. A lone newline before it keeps output that
    does not end in one apart.
    """
    lines = []
    for number, fact in enumerate(facts):
        command = shlex.join(["timeout", f"{each}", *fact.command])
        lines.append(f"{command} < /dev/null; code=$?")
        lines.append(f'printf "\\n{mark} {number} %d\\n" "$code"')
        lines.append(f'printf "\\n{mark} {number}\\n" >&2')
    return "\n".join(lines) + "\n"


def read(facts: Sequence[Fact[Any]], mark: str, stdout: str, stderr: str) -> dict[str, Reading[Any]]:
    """Readings by name from what the script printed; a command whose mark is missing did not run."""
    outputs = _split(stdout, rf"{re.escape(mark)} (\d+) (\d+)")
    errors = _split(stderr, rf"{re.escape(mark)} (\d+)()")
    found: dict[str, Reading[Any]] = {}
    for number, fact in enumerate(facts):
        if number not in outputs:
            found[fact.name] = Reading(None, "the node stopped answering before this was read")
            continue
        text, code = outputs[number]
        said = errors.get(number, ("", 0))[0].strip()
        found[fact.name] = _reading(fact, text, code, said)
    return found


def _split(text: str, pattern: str) -> dict[int, tuple[str, int]]:
    parts, begin = {}, 0
    for match in re.finditer(rf"\n{pattern}\n", text):
        parts[int(match[1])] = (text[begin : match.start()], int(match[2] or 0))
        begin = match.end()
    return parts


def _reading(fact: Fact[T], text: str, code: int, said: str) -> Reading[T]:
    program = fact.command[0]
    if code == 127:
        return Reading(None, f"{program} is not installed")
    if code == 124:
        return Reading(None, f"{program} did not end within its time")
    if code != 0 and code not in fact.partial:
        last = said.splitlines()[-1] if said else text.strip().splitlines()[-1] if text.strip() else ""
        return Reading(None, f"{program} left with {code}" + (f": {last[:300]}" if last else ""))
    try:
        return Reading(fact.parse(text))
    except ValueError as error:
        return Reading(None, str(error))


async def survey(
    node: Node, facts: Sequence[Fact[Any]], *, each: int = EACH_SECONDS, timeout: float = 60.0
) -> Facts:
    """Ask a node for facts, all at once. Raises NodeError only where the node itself cannot be asked.

    each, timeout: seconds for one command and for all.
    """
    mark = f"glmspark-{secrets.token_hex(16)}"
    begin = time.monotonic()
    text = script(facts, mark, each=each).encode()
    done = await node.run(["sh", "-s"], timeout=timeout, input=text, env={"LC_ALL": "C"})
    if mark not in done.stdout and facts:
        raise failed(node.host, "gather facts", done, next="check that the user's shell there is a usual one")
    seconds = time.monotonic() - begin
    return Facts(node.host, read(facts, mark, done.stdout, done.stderr), seconds=seconds)


async def skew(node: Node) -> tuple[float, float] | None:
    """How far the node's clock is ahead of ours and how sure that is, in seconds; None where it won't say."""
    before = time.time()
    try:
        done = await node.run(CLOCK.command, timeout=10)
        after = time.time()
        return offset(before, CLOCK.parse(done.stdout), after)
    except (NodeError, ValueError):
        return None
