import subprocess
from pathlib import Path

import pytest

from glmspark.lab import needs
from glmspark.lab.run import LabError

ROOT = Path(__file__).resolve().parents[3]
ESSENTIAL = {"util-linux", "mount", "hostname", "tar"}  # no Debian or Ubuntu is without them


def test_the_package_script_names_all_that_the_lab_runs():
    command = ["sh", str(ROOT / "tools/debian-packages.sh"), "lab", "--list"]
    listed = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert {*needs.PROGRAMS.values(), *needs.IMAGE_PROGRAMS.values()} - listed == ESSENTIAL


def test_missing_packages_are_named_once(tmp_path):
    for name in ("ip", "sshd"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    wanted = {
        "ip": "iproute2",
        "tc": "iproute2",
        "sshd": "openssh-server",
        "dockerd": "docker.io",
        "docker": "docker.io",
    }
    assert needs.missing_packages(wanted, str(tmp_path)) == ["iproute2", "docker.io"]


def test_one_error_names_all(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(needs, "missing_packages", lambda programs: ["tini", "docker.io"])
    with pytest.raises(LabError, match=r"needs root and the packages tini, docker\.io") as caught:
        needs.check()
    assert caught.value.next == "`tools/debian-packages.sh lab --install`, then run it with sudo"


def test_root_with_all_programs_may_go_on(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(needs, "missing_packages", lambda programs: [])
    needs.check()
