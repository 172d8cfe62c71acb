"""docs/nodes.md names every check that there is, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

from glmspark.nodes.checks.everything import judge
from glmspark.nodes.checks.login import locked_memory
from tests.unit.nodes.sparks import EXPECTED, look
from tests.unit.nodes.test_checks_for_recipes import needing

TEXT = (Path(__file__).parents[3] / "docs" / "nodes.md").read_text()


def documented() -> set[str]:
    """Names in the first column of doctor's table; `path to …` stands for all that begin so."""
    section = TEXT.partition("## doctor")[2].partition("## tune")[0]
    rows = re.findall(r"(?m)^\| ([^|]+) \|", section)[1:]
    return {
        name.strip().removesuffix(" …") for row in rows for name in re.sub(r"\(`.*?`\)", "", row).split(",")
    }


def existing() -> set[str]:
    verdicts = [*judge(look()), *judge(look(expected=needing("glm-5.3-flash-nvfp4-2x-mtp")))]
    # "link speed" speaks up only where speeds differ, "locked memory" only without containers.
    assert locked_memory(look().facts["spark1"], EXPECTED) is None
    return {one.check for one in verdicts} | {"link speed", "locked memory"}


def test_the_table_is_true() -> None:
    names = documented()
    prefixes = {"fabric", "RDMA", "path to"}
    assert prefixes <= names
    checks = {next((one for one in prefixes if name.startswith(one)), name) for name in existing()}
    assert checks - names == set()
    assert names - checks == set()
