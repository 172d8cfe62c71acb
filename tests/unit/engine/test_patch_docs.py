"""Every patch is documented, with its upstream link."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from glmspark.engine.patch import Patch
from glmspark.engine.registry import PATCHES

DOCUMENT = Path(__file__).parents[3] / "docs" / "patches.md"


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_a_patch_has_its_section(patch: Patch) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    section = re.search(rf"^## {patch.name}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None, f"{DOCUMENT} has no section {patch.name}"
    for part in (patch.link, "**Upstream:**", "**Precondition:**", "**Without it:**"):
        assert part in section[1], f"the section {patch.name} lacks {part}"


def test_no_section_outlives_its_patch() -> None:
    headings = re.findall(r"^## (\S+)$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == [patch.name for patch in PATCHES]


def test_names_are_fit_for_a_list_of_names() -> None:
    assert all(re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", patch.name) for patch in PATCHES)
    assert len({patch.name for patch in PATCHES}) == len(PATCHES)
