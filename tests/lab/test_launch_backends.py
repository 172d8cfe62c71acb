"""`glmspark up` on virtual Sparks by other backends, and without containers; asked through SSH tunnels."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.lab.launches import Launches, answer, changed_cluster, client, small_recipe
from tests.lab.virtual import VirtualSparks

pytestmark = pytest.mark.timeout(500)


@pytest.fixture(scope="module")
def launches(lab_with_image: VirtualSparks) -> Launches:
    return Launches(lab_with_image, lab_with_image.home.cluster_file)


@pytest.fixture
def tunnel(launches: Launches) -> Iterator[int]:
    """OpenSSH's own way to the head's loopback, as `up` prints it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    process = subprocess.Popen(
        ["ssh", "-F", str(launches.sparks.home.ssh_config), "-N", "-L", f"{port}:127.0.0.1:8000", "spark1"]
    )
    yield port
    process.terminate()
    process.wait(10)


def ask_through(port: int) -> str:
    for _ in range(50):
        try:
            return answer(client("127.0.0.1", port))
        except openai.APIConnectionError:
            time.sleep(0.1)
    raise AssertionError("the tunnel does not open")


def venv_cluster(launches: Launches, directory: Path) -> Path:
    return changed_cluster(
        launches.cluster,
        directory / "venv.yaml",
        runtime={"kind": "venv", "venv": str(Path(sys.prefix))},
    )


def test_lockstep_in_a_python_environment(launches: Launches, tunnel: int, tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path, "two", backend="lockstep", tp=2)
    start = launches.start(str(recipe), cluster=venv_cluster(launches, tmp_path))
    assert start.end() == 0, start.text
    assert ask_through(tunnel) == "4"
    assert [rank.node for rank in launches.record("two").ranks] == ["spark1", "spark2"]
    launches.down("two")


@pytest.mark.parametrize("backend", ["mp", "ray"])
def test_three_stages_in_containers(launches: Launches, tunnel: int, tmp_path: Path, backend: str) -> None:
    recipe = small_recipe(tmp_path, f"by-{backend}", backend=backend, pp=3)
    said = launches.up(str(recipe))
    assert f"by-{backend} is ready after" in said
    assert [rank.node for rank in launches.record(f"by-{backend}").ranks] == ["spark1", "spark2", "spark3"]
    assert ask_through(tunnel) == "4"
    launches.down(f"by-{backend}")
