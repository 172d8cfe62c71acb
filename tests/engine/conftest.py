"""One checkpoint, one reference, and each layout started once for all engine tests."""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import glmspark

# Read when torch loads OpenMP, so before it is imported: waiting threads must not spin where others work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from tests.engine.ranks import Layout, Ranks, left_behind
from tests.engine.reference import Reference

LAYOUTS = (Layout(1, 1), Layout(2, 1), Layout(1, 2))


@pytest.fixture(scope="session", autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where every process of these tests keeps temporary files; it goes with what they left in /dev/shm.

    An engine on one machine meets at a file `vllm_dist_...` in its TMPDIR, names its shared memory after it,
    and removes neither. The path is short: sockets lie in it, whose paths hold 107 bytes at most.
    """
    tmp_path_factory.getbasetemp()  # pytest's own directory stays where it is
    before = os.environ.get("TMPDIR")
    kept = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(kept))  # what was compiled is good for the next run
    with tempfile.TemporaryDirectory(prefix="gs-", ignore_cleanup_errors=True) as directory:
        os.environ["TMPDIR"] = directory
        yield Path(directory)
        for meeting in Path(directory).glob("vllm_dist_*"):
            for left in Path("/dev/shm").glob(f"{meeting.name}*"):
                left.unlink(missing_ok=True)
    os.environ.pop("TMPDIR")
    if before is not None:
        os.environ["TMPDIR"] = before


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
