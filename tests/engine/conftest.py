"""One checkpoint, one reference, and each layout started once for all engine tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import glmspark

# Read when torch loads OpenMP, so before it is imported: waiting threads must not spin where others work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from tests.engine.ranks import Layout, Ranks, left_behind
from tests.engine.reference import Reference

LAYOUTS = (Layout(1, 1), Layout(2, 1), Layout(1, 2))


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """glm-tiny as it comes with the package, or the directory GLMSPARK_TEST_CHECKPOINT names."""
    packaged = Path(glmspark.__file__).parent / "recipes" / "checkpoints" / "glm-tiny"
    path = Path(os.environ.get("GLMSPARK_TEST_CHECKPOINT", packaged))
    assert (path / "config.json").is_file(), f"no checkpoint in {path}"
    return path


@pytest.fixture(scope="session")
def reference(checkpoint: Path) -> Reference:
    """The checkpoint in transformers."""
    return Reference(checkpoint)


@pytest.fixture(scope="session", params=LAYOUTS, ids=str)
def ranks(
    request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ranks]:
    """A running layout. pytest groups tests by it, so that each is started once."""
    layout: Layout = request.param
    with Ranks(checkpoint, layout, tmp_path_factory.mktemp(str(layout))) as running:
        yield running
        shared = running.shared_memory()
    assert shared
    assert not left_behind(shared)
