"""Patterns of the catalogue: what is accepted, and that no line makes them slow."""

from __future__ import annotations

import functools
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmspark.symptoms.catalogue import catalogue
from glmspark.symptoms.patterns import LONGEST_LINE, Pattern, PatternError


@pytest.mark.parametrize(
    ("source", "line", "fits"),
    [
        ("NV_ERR_NO_MEMORY", "NVRM: Out of memory [NV_ERR_NO_MEMORY]", True),
        ("Free memory .* is less than", "ValueError: Free memory on device is less than", True),
        ("Free memory .* is less than", "is less than Free memory", False),
        ("port (22|2222): Connection refused", "ssh: port 2222: Connection refused", True),
        (r"exit code: -\d{1,3}\)", "died (exit code: -11)", True),
        ("aaaa.*bbbb.*cccc", "aaaa bbbb xxxx cccc", True),
        ("aaaa.*bbbb.*cccc", "aaaa cccc bbbb", False),
        (r"a\.\*literal", "a.*literal", True),
    ],
)
def test_what_fits(source: str, line: str, fits: bool) -> None:
    assert Pattern.parse(source).search(line) is fits


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("(a+)+literal", "a repeat has no end|may not be repeated"),
        ("literal(?:ab)*", "may not be repeated|no end"),
        ("literala+", "no end"),
        ("literal.+x", "write `.\\*`"),
        ("literal(?=x)", "not accepted"),
        (r"(lite)ral\1", "not accepted"),
        ("(?i)literal", "flags"),
        ("literal[", "not a regular expression"),
        ("ab", "no 4 characters"),
        (r"\d{4}", "no 4 characters"),
        ("literal" + "[ab]{0,200}" * 3, "ways"),
        ("literal(a.*b)", "no end"),
    ],
)
def test_what_might_be_slow_is_refused(source: str, why: str) -> None:
    with pytest.raises(PatternError, match=why):
        Pattern.parse(source)


def test_a_long_line_is_looked_at_around_the_literal() -> None:
    pattern = Pattern.parse("Free memory .* is less than")
    line = "x" * 100_000 + "Free memory on device is less than" + "y" * 100_000
    assert pattern.search(line)
    assert not pattern.search("Free memory" + "x" * (2 * LONGEST_LINE) + " is less than")


@given(st.text(max_size=40))
def test_any_text_is_a_pattern_or_refused(source: str) -> None:
    try:
        pattern = Pattern.parse(source)
    except PatternError:
        return
    assert pattern.literal in source.replace("\\", "") or "(" in source or "\\" in source


@functools.cache
def patterns() -> list[Pattern]:
    return [pattern for symptom in catalogue() for pattern in symptom.lines]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_no_line_is_slow(data: st.DataObject) -> None:
    """Lines made of the patterns' own pieces, over and over, are the worst that can come."""
    pattern = data.draw(st.sampled_from(patterns()))
    pieces = [*re.split(r"[.*\\\[\](){}|]+", pattern.source), "a", "1", " ", "\\", "\x00"]
    line = pattern.literal + "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=20))) * 400
    begin = time.process_time()
    pattern.search(line)
    assert time.process_time() - begin < 0.5
