"""Each node's own Docker Engine, and the base image in it."""

from __future__ import annotations

import json

import pytest

from glmspark import __version__
from glmspark.config.cluster import Runtime
from glmspark.lab.image import engine_mounts
from tests.lab.virtual import VirtualSparks

HOST = ["--rm", "--network", "host", "--ipc", "host", "--uts", "host"]


def image(lab: VirtualSparks) -> str:
    runtime: Runtime = lab.cluster.runtime
    assert runtime.image is not None
    return runtime.image


def test_every_node_has_the_same_image_and_an_engine_of_its_own(lab_with_image: VirtualSparks) -> None:
    lab = lab_with_image
    nodes = [node.name for node in lab.cluster.nodes]
    ids = {lab.shell(node, "docker", "image", "inspect", "--format", "{{.Id}}", image(lab)) for node in nodes}
    assert len(ids) == 1
    engines = [json.loads(lab.shell(node, "docker", "info", "--format", "{{json .}}")) for node in nodes]
    assert len({engine["ID"] for engine in engines}) == len(nodes)
    assert [engine["Name"] for engine in engines] == nodes
    assert [engine["Labels"] for engine in engines] == [[f"glmspark.lab.node={node}"] for node in nodes]


def test_bringing_the_image_again_changes_nothing(lab_with_image: VirtualSparks) -> None:
    lab = lab_with_image
    brought = json.loads(lab.lab("image", "--json").stdout)
    assert brought["nodes"] == [node.name for node in lab.cluster.nodes]
    assert brought["id"] == lab.shell(
        "spark3", "docker", "image", "inspect", "--format", "{{.Id}}", image(lab)
    )


@pytest.mark.parametrize("node", ["spark1", "spark3"])
def test_a_container_on_the_node_s_network_is_that_node(lab_with_image: VirtualSparks, node: str) -> None:
    lab = lab_with_image
    lab.shell(node, "touch", f"/dev/shm/of-{node}")
    look = (
        "import os, socket; "
        "print(socket.gethostname(), os.listdir('/dev/shm'), open('/proc/net/fib_trie').read())"
    )
    seen = lab.shell(node, "docker", "run", *HOST, image(lab), "python3", "-c", look)
    lab.shell(node, "rm", f"/dev/shm/of-{node}")
    assert seen.split()[0] == node
    assert f"of-{node}" in seen
    addresses = lab.fabric(node)
    assert all(address in seen for address in addresses)
    others = [
        address for other in lab.cluster.nodes if other.name != node for address in lab.fabric(other.name)
    ]
    assert not any(f"|-- {address}\n" in seen for address in others)


def test_a_container_runs_this_environment_s_python(lab_with_image: VirtualSparks) -> None:
    import sys

    lab = lab_with_image
    mounts = [word for path in engine_mounts() for word in ("--volume", f"{path}:{path}:ro")]
    command = [sys.executable, "-c", "import glmspark, ssl, sqlite3; print(glmspark.__version__)"]
    seen = lab.shell("spark2", "docker", "run", *HOST, *mounts, "--workdir", "/", image(lab), *command)
    assert seen == __version__


def test_containers_of_one_node_are_not_seen_on_another(lab_with_image: VirtualSparks) -> None:
    lab = lab_with_image
    lab.shell("spark1", "docker", "run", "--detach", "--name", "mine", *HOST, image(lab), "sleep", "300")
    try:
        assert lab.shell("spark1", "docker", "ps", "--format", "{{.Names}}") == "mine"
        assert lab.shell("spark2", "docker", "ps", "--format", "{{.Names}}") == ""
        assert "sleep 300" not in lab.shell("spark2", "ps", "-eo", "args")
    finally:
        lab.shell("spark1", "docker", "kill", "mine")


def test_the_labs_image_is_built_on_a_node(lab_with_image: VirtualSparks) -> None:
    """`docker build` of the lab's Dockerfile, by the node's own Engine; the image runs this environment."""
    import sys

    lab = lab_with_image
    tag = "glmspark-lab:built"
    built = json.loads(lab.glmspark("image", "build", "--lab", "--tag", tag, "--json").stdout)
    assert (built["tag"], built["node"]) == (tag, "spark1")
    try:
        (found,) = json.loads(lab.shell("spark1", "docker", "image", "inspect", tag))
        assert found["Id"] == built["id"]
        assert found["Config"]["Labels"]["glmspark.version"] == __version__
        assert found["Config"]["Entrypoint"] in (None, [])
        mounts = [word for path in engine_mounts() for word in ("--volume", f"{path}:{path}:ro")]
        # Found by the image's own PATH: the environment's Python, with what it needs.
        python = ["python", "-c", "import glmspark, sys; print(glmspark.__version__, sys.prefix)"]
        seen = lab.shell("spark1", "docker", "run", *HOST, *mounts, "--workdir", "/", tag, *python)
        assert seen.split() == [__version__, sys.prefix]
        assert lab.shell("spark2", "docker", "image", "ls", "--quiet", tag) == ""
    finally:
        lab.shell("spark1", "docker", "image", "rm", tag)
