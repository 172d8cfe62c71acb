"""`glmspark recipe import`: the file it writes, and its account of the old one."""

from __future__ import annotations

from pathlib import Path

from tests.unit.cli.commands import Glmspark
from tests.unit.config.imports.test_recipes import V2


def test_the_command_line(glmspark: Glmspark, tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(V2)
    done = glmspark("recipe", "import", old, "-o", new, "--kv-cache", "8GiB")
    assert done.code == 0, done.err
    assert "pre_exec: it would run scripts" in done.out
    assert glmspark("recipe", "lint", new).code == 0
    assert glmspark("recipe", "import", old, "-o", new).code == 2
    assert glmspark("recipe", "import", old, "-o", new, "--force").code == 0
    assert glmspark("recipe", "import", old).out.startswith("recipe: 1\n")
    assert glmspark("recipe", "import", old, "--json").json["format"] == 2
    assert glmspark("recipe", "import", old, "--kv-cache", "much").code == 1
    assert glmspark("recipe", "import", tmp_path / "none.yaml").code == 1
