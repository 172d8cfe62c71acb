"""`glmspark up` on virtual Sparks by other backends, and without containers; asked through SSH tunnels."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

import glmspark
from tests.lab.launches import NODES, Launches, answer, changed_cluster, client, small_recipe
from tests.lab.virtual import VirtualSparks
from tests.unit.weights.hub import REPOSITORY, serving

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


def test_three_stages_by_ray(launches: Launches, tunnel: int, tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path, "by-ray", backend="ray", pp=3)
    assert "by-ray is ready after" in launches.up(str(recipe))
    assert [rank.node for rank in launches.record("by-ray").ranks] == list(NODES)
    assert ask_through(tunnel) == "4"
    launches.down("by-ray")


def address_of_this_machine(launches: Launches) -> str:
    """As the nodes reach it."""
    node = launches.sparks.cluster.nodes[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((node.address, 9))
        return str(probe.getsockname()[0])


def test_three_stages_that_store_what_they_need(
    launches: Launches, tunnel: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a hub, along the chain, to each node its stage; with no more than that it is proven ready."""
    recipe = small_recipe(tmp_path, "in-parts", backend="mp", pp=3)
    recipe.write_text(recipe.read_text().replace("package:glm-tiny", f"hf:{REPOSITORY}@main"))
    words = (str(recipe), "--cluster", str(launches.cluster), "--json")
    tiny = Path(glmspark.__file__).parent / "recipes" / "checkpoints" / "glm-tiny"
    place = f"{launches.sparks.cluster.paths.models}/{REPOSITORY.replace('/', '--')}@main"
    with serving(tiny, address_of_this_machine(launches)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        launches.sparks.glmspark("fetch", *words, "--only-needed")
    whole = (tiny / "model.safetensors").stat().st_size
    for node in NODES:
        assert int(launches.sparks.shell(node, "du", "-sb", place).split()[0]) <= 0.4 * whole
    verified = json.loads(launches.sparks.glmspark("verify", *words).stdout)[place]
    assert [one["good"] for one in verified] == [True] * 3
    listed = json.loads(launches.sparks.glmspark("models", "list", *words[1:]).stdout)
    assert [listed[node][Path(place).name]["part"] for node in NODES] == [[0, 1, 3], [1, 1, 3], [2, 1, 3]]
    refused = launches.start(str(recipe), "--nodes", "spark1,spark3,spark2")
    assert refused.end() != 0
    assert "rank 1 needs layers 1-2" in refused.text
    assert "spark3" in refused.text
    assert "in-parts is ready after" in launches.up(str(recipe))
    assert ask_through(tunnel) == "4"
    launches.down("in-parts")
    for node in NODES:
        launches.sparks.shell(node, "rm", "-rf", place)
