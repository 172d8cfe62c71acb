from pathlib import Path

from glmspark.lab import cgroups


def make(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).mkdir(parents=True)


def test_version_1_has_one_in_each_hierarchy(tmp_path):
    make(tmp_path, "cpu/lab-1/spark1/c", "memory/lab-1/spark2", "memory/lab-2", "pids")
    (tmp_path / "cpuacct").symlink_to("cpu")
    assert cgroups.places("lab-1", root=tmp_path) == [tmp_path / "cpu/lab-1", tmp_path / "memory/lab-1"]
    assert cgroups.remove("lab-1", root=tmp_path) == []
    assert cgroups.places("lab-1", root=tmp_path) == []
    assert (tmp_path / "memory/lab-2").is_dir()
    assert cgroups.remove("lab-1", root=tmp_path) == []


def test_version_2_has_one(tmp_path):
    make(tmp_path, "lab-1/spark1/a", "lab-1/spark2", "system.slice")
    assert cgroups.places("lab-1", root=tmp_path) == [tmp_path / "lab-1"]
    assert cgroups.remove("lab-1", root=tmp_path) == []
    assert (tmp_path / "system.slice").is_dir()


def test_what_would_not_go_is_named(tmp_path):
    make(tmp_path, "lab-1/spark1")
    (tmp_path / "lab-1/spark1/file").touch()  # as a group with a process in it: rmdir fails
    stuck = cgroups.remove("lab-1", root=tmp_path, seconds=0.0)
    assert stuck
    assert str(tmp_path / "lab-1/spark1") in stuck[0]


def test_without_control_groups(tmp_path):
    assert cgroups.places("lab-1", root=tmp_path / "none") == []
