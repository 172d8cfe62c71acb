"""Labs for the tests. They need root and the packages of `tools/debian-packages.sh lab`, and fail without."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.virtual import VirtualSparks, traces


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VirtualSparks]:
    """Three virtual Sparks on a switch with links of 1 Gbit/s, up for all tests of the session.

    Whoever cuts a link mends it; whoever leaves files in a node does so in a directory of its own.
    """
    sparks = VirtualSparks(tmp_path_factory.mktemp("lab") / "state")
    sparks.state.mkdir()
    sparks.lab("up", "3", "--link", "1gbe")
    yield sparks
    sparks.lab("down")
    assert traces(sparks.home) == []


@pytest.fixture(scope="session")
def lab_with_image(lab: VirtualSparks, request: pytest.FixtureRequest) -> VirtualSparks:
    """The same with the base image on every node. The image is kept for later runs in pytest's own cache."""
    kept = Path(request.config.cache.mkdir("glmspark-lab-image"))
    _copy_images(kept, lab.home.cache)
    lab.lab("image", timeout=1800)
    _copy_images(lab.home.cache, kept)
    return lab


def _copy_images(source: Path, target: Path) -> None:
    """The archive first and its note last: without the note an archive counts for nothing."""
    for suffix in (".tar", ".json"):
        for path in source.glob(f"*{suffix}"):
            if not (target / path.name).exists():
                aside = target / f"{path.name}.{os.getpid()}"
                shutil.copyfile(path, aside)
                aside.rename(target / path.name)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[VirtualSparks]:
    """A place for a lab of the test's own; whatever the test does, nothing of it is left afterwards."""
    sparks = VirtualSparks(tmp_path / "state")
    sparks.state.mkdir()
    yield sparks
    sparks.lab("down", ok=False)
    assert traces(sparks.home) == []
