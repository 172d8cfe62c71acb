"""A survey: many commands in one go, each with its own output, code and fault."""

from __future__ import annotations

import asyncio

from glmspark.nodes.facts import Fact
from glmspark.nodes.facts.everything import EVERYTHING
from glmspark.nodes.facts.host import HOSTNAME, KERNEL
from glmspark.nodes.node import LocalNode
from glmspark.nodes.survey import read, skew, survey

PLAIN = Fact("plain", ("printf", "no newline"), str)
ODD = Fact("odd", ("printf", "%s", "a'b\n$HOME \\ é"), str)
FAILS = Fact("fails", ("sh", "-c", "echo out; echo first >&2; echo why >&2; exit 3"), str)
PARTIAL = Fact("partial", ("sh", "-c", "echo some; exit 1"), str, partial=(1,))
MISSING = Fact("missing", ("no-such-program",), str)
READS = Fact("reads", ("cat",), str)
WRONG = Fact("wrong", ("echo", "x"), int)


def test_each_command_has_its_own_reading() -> None:
    facts = asyncio.run(survey(LocalNode("here"), [PLAIN, ODD, FAILS, PARTIAL, MISSING, READS, WRONG]))
    assert facts.get(PLAIN) == "no newline"
    assert facts.get(ODD) == "a'b\n$HOME \\ é"
    assert facts.get(FAILS) is None
    assert facts.problem(FAILS) == "sh left with 3: why"
    assert facts.get(PARTIAL) == "some\n"
    assert facts.problem(MISSING) == "no-such-program is not installed"
    assert facts.get(READS) == ""
    assert "invalid literal" in (facts.problem(WRONG) or "")
    assert facts.problem(HOSTNAME) == "not asked for"


def test_output_that_breaks_off_leaves_the_rest_unknown() -> None:
    found = read([PLAIN, FAILS], "mark", "text\nmark 0 0\nhalf of", "")
    assert found["plain"].value == "text"
    assert "stopped answering" in (found["fails"].problem or "")


def test_this_machine_in_one_go() -> None:
    facts = asyncio.run(survey(LocalNode("here"), EVERYTHING))
    assert facts.get(KERNEL) is not None
    assert facts.get(HOSTNAME)
    ahead, sure = asyncio.run(skew(LocalNode("here"))) or (9, 9)
    assert abs(ahead) <= sure + 0.001
