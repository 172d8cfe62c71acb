"""The guard must run where nothing of glmspark is: the standard library of Python 3.10 alone."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from glmspark import guard

SOURCES = sorted(Path(guard.__file__).parent.glob("*.py"))

# Each would take megabytes of the 25 that the guard may have.
LARGE = {
    "asyncio",
    "email",
    "http",
    "inspect",
    "logging",
    "multiprocessing",
    "pydoc",
    "ssl",
    "urllib",
    "unittest",
}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_it_imports_the_standard_library_alone_and_little_of_it(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 10))
    for one in ast.walk(tree):
        if isinstance(one, ast.Import):
            names = {name.name.partition(".")[0] for name in one.names}
        elif isinstance(one, ast.ImportFrom) and one.level == 0:
            names = {str(one.module).partition(".")[0]}
        else:
            assert not isinstance(one, ast.ImportFrom) or one.level == 1
            continue
        assert names <= sys.stdlib_module_names
        assert not names & LARGE
