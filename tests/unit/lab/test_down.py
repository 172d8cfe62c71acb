import pytest

from glmspark.lab import holders
from glmspark.lab.down import clear, down
from glmspark.lab.look import parse_links
from glmspark.lab.record import LabHome, LabRecord, NodeRecord
from glmspark.lab.spec import LabSpec
from glmspark.nodes.processes import Identity


def test_where_nothing_is_nothing_is_cleared(tmp_path):
    assert down(LabHome(tmp_path / "lab")).nothing


def test_a_lab_of_an_earlier_boot_is_only_files(tmp_path, monkeypatch):
    home = LabHome(tmp_path)
    # Process 1 of this boot has the recorded pid; it must not be taken for the lab's.
    home.write(
        LabRecord(LabSpec(1), 0, "earlier", 0.0, 1000, switch=Identity(1, 1), nodes=[NodeRecord("spark1")])
    )
    (home.nodes / "spark1/own").mkdir(parents=True)
    (home.cache / "x").mkdir(parents=True)
    killed: list[Identity] = []
    monkeypatch.setattr("glmspark.nodes.processes.send", lambda one, number: killed.append(one))
    cleared = clear(home)
    assert killed == []
    assert cleared.nodes == ["spark1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache"]
    assert clear(home).nothing


def test_a_damaged_record_is_cleared_too(tmp_path):
    home = LabHome(tmp_path)
    home.record_file.write_text("{")
    assert not clear(home).nothing
    assert list(tmp_path.iterdir()) == []


def test_links_in_files_are_not_followed(tmp_path):
    home = LabHome(tmp_path / "lab")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    home.nodes.mkdir(parents=True)
    (home.nodes / "spark1").symlink_to(precious)
    clear(home)
    assert (precious / "file").exists()


def test_remains_are_those_with_the_marker(tmp_path):
    import os
    import subprocess

    home = LabHome(tmp_path)
    env = {**os.environ, "GLMSPARK_LAB": str(tmp_path)}
    other = {**os.environ, "GLMSPARK_LAB": str(tmp_path / "other")}
    mine = subprocess.Popen(["sleep", "60"], env=env)
    stranger = subprocess.Popen(["sleep", "60"], env=other)
    try:
        assert [one.pid for one in holders.remains(home, [])] == [mine.pid]
        assert holders.end_all(home, []) == []
        assert mine.wait(5) == -9
        assert stranger.poll() is None
    finally:
        for process in (mine, stranger):
            process.kill()
            process.wait()


def test_links():
    text = '[{"ifname": "n1f0", "flags": ["BROADCAST", "UP"]}, {"ifname": "n1w", "flags": ["NO-CARRIER"]}]'
    assert parse_links(text) == {"n1f0": True, "n1w": False}
    with pytest.raises(ValueError, match="Expecting"):
        parse_links("")
