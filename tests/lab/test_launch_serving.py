"""`glmspark up` on virtual Sparks with real vLLM in containers: from bare nodes to a proven endpoint, what it
is then good for, and down again without a trace."""

from __future__ import annotations

import json
import tarfile
import time
from collections.abc import Iterator

import openai
import pytest

from glmspark.launch.lockfile import read_lock
from glmspark.launch.record import State
from tests.lab.launches import KEY, QUESTION, Launches, answer, client
from tests.lab.virtual import VirtualSparks

pytestmark = pytest.mark.timeout(500)


@pytest.fixture(scope="module")
def launches(lab_with_image: VirtualSparks) -> Launches:
    return Launches(lab_with_image, lab_with_image.home.cluster_file)


@pytest.fixture(scope="module")
def served(launches: Launches) -> Iterator[str]:
    """What `up` printed for glm-tiny with all its canaries, on spark1 and spark2, which had lost its image.

    The API listens on the fabric, so it asks for a key.
    """
    image = launches.sparks.cluster.runtime.image
    launches.sparks.shell("spark2", "docker", "image", "rm", "--force", str(image))
    printed = launches.up(
        *(
            "glm-tiny",
            "--tp",
            "2",
            "--host",
            address(launches),
            "--lock",
            str(launches.sparks.state / "l.json"),
        ),
        env={"GLMSPARK_API_KEY": KEY},
    )
    yield printed
    launches.down("glm-tiny")


def address(launches: Launches) -> str:
    """Where the head is on the fabric."""
    return launches.sparks.fabric("spark1")[0]


def test_mp_tp2_is_proven_and_answers(launches: Launches, served: str) -> None:
    assert "glm-tiny is ready after" in served
    assert served.count("  pass  ") == 10
    assert answer(client(address(launches))) == "4"
    with pytest.raises(openai.AuthenticationError):
        answer(client(address(launches), key="another"))
    record = launches.record("glm-tiny")
    assert record.state is State.READY
    assert [rank.node for rank in record.ranks] == ["spark1", "spark2"]
    assert KEY not in launches.home("glm-tiny").record_file.read_text()


def test_an_image_that_is_missing_is_brought_from_another_node(launches: Launches, served: str) -> None:
    assert "copying glmspark-lab:base from spark1 to spark2" in served


def test_it_is_not_started_twice(launches: Launches, served: str) -> None:
    words = ("glm-tiny", "--tp", "2", "--host", address(launches))
    env = {"GLMSPARK_API_KEY": KEY}
    assert "already runs, ready" in launches.up(*words, env=env)
    start = launches.start("glm-tiny", "--tp", "1", "--host", address(launches), env=env)
    assert start.end() == 2
    assert "TP2 PP1 instead of TP1 PP1" in start.text


def test_another_deployment_leaves_it_its_port(launches: Launches, served: str) -> None:
    words = ("glm-tiny", "--name", "another", "--tp", "2", "--host", address(launches))
    start = launches.start(*words, env={"GLMSPARK_API_KEY": KEY})
    assert start.end() == 2
    assert "port 8000 is taken by the deployment glm-tiny" in start.text
    assert "host: spark1" in start.text


def test_containers_have_no_more_rights_than_they_need(launches: Launches, served: str) -> None:
    for node, rank in (("spark1", 0), ("spark2", 1)):
        (found,) = json.loads(launches.sparks.shell(node, "docker", "inspect", f"glmspark-glm-tiny-r{rank}"))
        host = found["HostConfig"]
        assert not host["Privileged"]
        assert not host["CapAdd"]
        assert host["RestartPolicy"]["Name"] == "no"
        assert found["Config"]["User"] == launches.sparks.shell(node, "sh", "-c", "echo $(id -u):$(id -g)")
        assert KEY not in json.dumps(found["Config"]["Cmd"])
        read_only = [one for one in found["Mounts"] if not one["RW"]]
        assert {"/home/spark/models/glm-tiny"} <= {one["Destination"] for one in read_only}


def test_chat_and_status_reach_it_from_here(launches: Launches, served: str) -> None:
    said = launches.sparks.glmspark("chat", "--name", "glm-tiny", "--json", QUESTION)
    assert json.loads(said.stdout)["content"] == "4"
    (status,) = json.loads(launches.sparks.glmspark("status", "glm-tiny", "--json").stdout)
    assert status["state"] == "ready"
    assert [rank["alive"] for rank in status["ranks"]] == [True, True]


def test_the_lock_file_holds_all_of_it_and_refuses_what_has_changed(launches: Launches, served: str) -> None:
    file = launches.sparks.state / "l.json"
    lock = read_lock(file)
    assert lock == read_lock(launches.home("glm-tiny").path / "lock.json")
    assert lock["runtime"]["id"].startswith("sha256:")
    assert set(lock["nodes"]) == {"spark1", "spark2"}
    assert lock["nodes"]["spark2"]["kernel"]
    assert len(lock["model"]["files"]["model.safetensors"][1]) == 64
    lock["nodes"]["spark2"]["kernel"] = "6.17.0-1 aarch64"
    other = launches.sparks.state / "other.json"
    other.write_text(json.dumps(lock))
    words = ("glm-tiny", "--name", "another", "--tp", "2", "--port", "8001")
    said = launches.refused(*words, "--locked", str(other))
    assert "nodes.spark2.kernel is" in said
    assert "host: spark2" in said


def test_losing_the_default_route_s_wi_fi_changes_nothing(launches: Launches, served: str) -> None:
    way = launches.sparks.shell("spark1", "ip", "route", "show", "default")
    assert "wlP9s9" in way
    launches.sparks.lab("cut", "wifi")
    try:
        time.sleep(2)
        assert answer(client(address(launches))) == "4"
        launches.sparks.shell("spark1", "ip", "route", "flush", "default", root=True)
        assert answer(client(address(launches))) == "4"
        (status,) = json.loads(launches.sparks.glmspark("status", "glm-tiny", "--json").stdout)
        assert status["state"] == "ready"
    finally:
        launches.sparks.shell("spark1", "ip", "route", "add", *way.split(), root=True)
        launches.sparks.lab("mend", "wifi")


def test_it_is_watched_explained_and_packed(launches: Launches, served: str) -> None:
    """All three from the machine that started it, over SSH; the guard of each node tells the rates."""
    sparks = launches.sparks
    view = json.loads(sparks.glmspark("watch", "glm-tiny", "--once", "--json", "--interval", "0.5").stdout)
    assert view["state"] == "ready"
    assert view["engine"]["running"] == 0
    assert [(node["name"], node["rank"], node["error"]) for node in view["nodes"]] == [
        ("spark1", 0, None),
        ("spark2", 1, None),
    ]
    assert all(node["memory"]["weights"] > 0 for node in view["nodes"])
    assert all("enp1s0f0np0" in node["fabric"] for node in view["nodes"])
    path = sparks.state / "bundle.tar.gz"
    about = json.loads(sparks.glmspark("bundle", "glm-tiny", "--no-doctor", "--json", "-o", str(path)).stdout)
    assert {"record.json", "lock.json", "spark1/logs/rank-0.log", "spark2/logs/rank-1.log"} <= set(
        about["files"]
    )
    assert any(name.startswith("spark2/guard/ring/") for name in about["files"])
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member)
            assert content is not None
            assert KEY.encode() not in content.read(), member.name
    said = json.loads(sparks.glmspark("explain", "glm-tiny", "--json", ok=False).stdout)
    assert said["about"] == "glm-tiny (ready, glm-tiny)"
    assert {"spark1 rank 0", "spark2 rank 1", "spark1 guard", "spark2 guard"} <= set(said["sources"])
    assert [one for one in said["findings"] if one["severity"] == "fatal" and one["sure"] > 0.6] == []
