"""The agent must run where nothing of glmspark is: the standard library of Python 3.10 alone."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from glmspark.launch import node_agent
from glmspark.launch.agent_archive import AGENT
from glmspark.nodes.archives import Archive

SOURCES = sorted(Path(node_agent.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_it_imports_the_standard_library_alone(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 10))
    for one in ast.walk(tree):
        if isinstance(one, ast.Import):
            assert {name.name.partition(".")[0] for name in one.names} <= sys.stdlib_module_names
        elif isinstance(one, ast.ImportFrom) and one.level == 0:
            assert str(one.module).partition(".")[0] in sys.stdlib_module_names
        elif isinstance(one, ast.ImportFrom):
            assert one.level == 1


def test_the_archive_is_the_same_each_time_and_runs(tmp_path: Path) -> None:
    data = AGENT.data
    assert {f"node_agent/{path.name}" for path in SOURCES} < set(zipfile.ZipFile(io.BytesIO(data)).namelist())
    again = Archive("agent", node_agent, "__main__", {"ok": False})
    assert again.data == data
    assert again.digest == AGENT.digest == hashlib.sha256(data).hexdigest()
    (tmp_path / "agent.pyz").write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-I", tmp_path / "agent.pyz", "dance"], capture_output=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"] == "no such command: dance"
