import json

import pytest

from glmspark.config.cluster import parse_cluster
from glmspark.errors import StateError
from glmspark.lab.cluster import lab_cluster
from glmspark.lab.record import LabHome, LabRecord, NodeRecord, State, lab_home
from glmspark.lab.spec import LabSpec, Topology
from glmspark.lab.wiring import wire
from glmspark.nodes.processes import Identity


def record() -> LabRecord:
    return LabRecord(
        LabSpec(2, Topology.PAIR, rate=10**9),
        slot=3,
        boot="boot",
        created=1.5,
        uid=1000,
        state=State.UP,
        claimed=True,
        switch=Identity(10, 100),
        nodes=[NodeRecord("spark1", Identity(11, 101), Identity(12, 102)), NodeRecord("spark2")],
    )


def test_round_trip(tmp_path):
    home = LabHome(tmp_path)
    assert home.read() is None
    home.write(record())
    assert home.read() == record()
    assert home.record_file.stat().st_mode & 0o777 == 0o600


def test_recorded_processes():
    assert [one.pid for one in record().processes()] == [10, 11, 12]
    assert record().node("spark2") == NodeRecord("spark2")
    assert record().node("spark3") is None


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 2},
        {"spec": {"nodes": 2}},
        {"spec": None},
        {"state": "well"},
        {"switch": [1]},
        {"nodes": [{}]},
        {"slot": None},
    ],
)
def test_a_record_that_cannot_be_understood_is_one_error(tmp_path, damage):
    home = LabHome(tmp_path)
    home.record_file.write_text(json.dumps(record().to_json() | damage))
    with pytest.raises(StateError, match="is not a record of a lab") as caught:
        home.read()
    assert "lab down" in (caught.value.next or "")


def test_a_list_is_no_record(tmp_path):
    (tmp_path / "lab.json").write_text("[]")
    with pytest.raises(StateError):
        LabHome(tmp_path).read()


def test_control_group_follows_from_the_path(tmp_path):
    assert LabHome(tmp_path).cgroup == LabHome(tmp_path).cgroup
    assert LabHome(tmp_path).cgroup != LabHome(tmp_path / "other").cgroup


def test_the_lab_lies_in_the_state_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("GLMSPARK_STATE_DIR", str(tmp_path))
    assert lab_home().path == tmp_path / "lab"


@pytest.mark.parametrize(
    "spec", [LabSpec(1), LabSpec(8), LabSpec(2, Topology.PAIR), LabSpec(4, Topology.RING)]
)
def test_the_cluster_file_is_one(spec, tmp_path):
    wiring = wire(spec, 2)
    cluster = parse_cluster(lab_cluster(LabHome(tmp_path), wiring), "cluster.yaml")
    assert [node.name for node in cluster.nodes] == list(wiring.nodes)
    assert cluster.ssh.user == "spark"
    for node in cluster.nodes:
        assert node.address == str(wiring.reached_at(node.name))
        assert [link.address for link in node.fabric] == [port.address for port in wiring.fabric(node.name)]
        assert all(link.interface != "wlP9s9" for link in node.fabric)
