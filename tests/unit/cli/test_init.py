"""`glmspark init`: the file it writes, and what it refuses."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest

from glmspark import __version__
from glmspark.config.cluster import load_cluster
from glmspark.nodes.discover import Candidate, Fabric
from glmspark.nodes.facts.environment import Environment, environment
from glmspark.nodes.ssh import Address
from glmspark.nodes.survey import Facts, Reading
from tests.unit.cli.commands import Glmspark
from tests.unit.nodes.sparks import readings

extra: dict[str, Reading[Any]] = {}
"""Further facts of every Spark."""


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every host is a Spark on one switch."""

    async def look(where: Mapping[str, Address], **_: object) -> tuple[dict[str, Facts], Fabric]:
        facts = {name: Facts(name, readings(1 + i % 2) | extra) for i, name in enumerate(where)}
        links = {
            name: (
                Candidate(name, "enp1s0f0np0", IPv4Interface(f"10.10.1.{i + 1}/24"), 200000, "rocep1s0f0"),
            )
            for i, name in enumerate(where)
        }
        return facts, Fabric(links, "switch" if len(where) > 2 else "pair", ("one note",))

    monkeypatch.setattr("glmspark.nodes.discover.look_for_fabric", look)


@pytest.mark.usefixtures("looked")
def test_the_file_is_one_that_loads(glmspark: Glmspark, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    done = glmspark("init", "me@spark1", "me@spark2", "me@spark3", "-o", file, "--image", "glmspark:1")
    assert done.code == 0, done.err
    cluster = load_cluster(file)
    assert [node.address for node in cluster.nodes] == ["spark1", "spark2", "spark3"]
    assert cluster.ssh.user == "me"
    assert cluster.runtime.image == "glmspark:1"
    assert file.read_text().startswith(
        "# Written by `glmspark init`: connected through a switch, with RDMA.\n# one note\n"
    )
    assert f"next: glmspark doctor --cluster {file}" in done.out


@pytest.mark.usefixtures("looked")
def test_nodes_without_this_environment_get_containers(glmspark: Glmspark, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    done = glmspark("init", "a", "b", "-o", file)
    assert done.code == 0, done.err
    runtime = load_cluster(file).runtime
    assert (runtime.kind, runtime.image) == ("docker", f"glmspark:{__version__}")
    assert f"ranks run in containers of glmspark:{__version__} (a has no engine at {sys.prefix})" in done.out
    assert f"no node has glmspark:{__version__} yet: `glmspark image build`" in done.out
    named = glmspark("init", "a", "b", "-o", file, "--force", "--image", "glmspark:1")
    assert "ranks run in containers of glmspark:1\n" in named.out
    assert "no node has" not in named.out


@pytest.mark.usefixtures("looked")
def test_nodes_that_have_this_environment_use_it(
    glmspark: Glmspark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        f"{__name__}.extra", {environment(sys.prefix).name: Reading(Environment("0.32.0", __version__))}
    )
    file = tmp_path / "cluster.yaml"
    done = glmspark("init", "a", "b", "-o", file)
    assert done.code == 0, done.err
    runtime = load_cluster(file).runtime
    assert (runtime.kind, runtime.venv, runtime.image) == ("venv", sys.prefix, None)
    assert f"ranks run in {sys.prefix} (every node has vLLM 0.32.0 there)" in done.out
    assert "no node has" not in done.out


@pytest.mark.usefixtures("looked")
def test_a_file_that_is_there_is_kept(glmspark: Glmspark, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("mine")
    done = glmspark("init", "a", "b", "-o", file)
    assert (done.code, file.read_text()) == (2, "mine")
    assert "--force" in done.err
    assert glmspark("init", "a", "b", "-o", file, "--force").code == 0
    assert load_cluster(file).nodes


@pytest.mark.usefixtures("looked")
def test_from_a_file_of_a_shell_launcher(glmspark: Glmspark, tmp_path: Path) -> None:
    env = tmp_path / ".env"
    env.write_text("CLUSTER_NODES=10.0.0.1,10.0.0.2\nETH_IF=wlP9s9\nCONTAINER_X=1\n")
    done = glmspark("init", "--from-env", env, "-o", tmp_path / "c.yaml")
    assert done.code == 0, done.err
    assert "kept    line 1: CLUSTER_NODES" in done.out
    assert "ETH_IF: wlP9s9 is not fabric on the first node; found there: enp1s0f0np0" in done.out
    data = glmspark("init", "--from-env", env, "-o", tmp_path / "d.yaml", "--json").json
    assert data["shape"] == "pair"
    assert {"CLUSTER_NODES", "ETH_IF", "CONTAINER_X"} == {note["name"] for note in data["imported"]}


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ((), 2, "no nodes given"),
        (("a", "--from-env", "x"), 2, "not both"),
        (
            ("--from-env", "/nonexistent/.env"),
            2,
            ".env cannot be read: No such file or directory",
        ),
        (("--from-env", "/"), 2, "/ cannot be read: Is a directory"),
        (("--from-env", "/dev/zero"), 2, "/dev/zero is no .env file"),
        (("--from-env", "/proc/self/exe"), 2, "/proc/self/exe cannot be read: it is no UTF-8 text"),
        (("127.0.0.1:1", "-o", "/nonexistent/c.yaml"), 2, "there is no directory /nonexistent"),
        (("127.0.0.1:1", "-o", "/", "--force"), 2, "/ is a directory"),
        (("127.0.0.1:1", "--image", "A B"), 2, "'A B' is no image name"),
        (("127.0.0.1:1", "-o", "-"), 1, "nothing listens for SSH"),
    ],
)
def test_what_is_refused(glmspark: Glmspark, words: tuple[str, ...], code: int, text: str) -> None:
    done = glmspark("init", *words)
    assert done.code == code
    assert text in done.err
