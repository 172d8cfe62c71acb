"""Bundles: what is in them, and that no secret is."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import stat
import tarfile
from pathlib import Path

import pytest

from glmspark.errors import GlmsparkError
from glmspark.launch import bundle as bundles
from glmspark.launch import bundle_node
from glmspark.launch.bundle import Bundle, collect_home, collect_machine, collect_node, write
from glmspark.launch.case import Case
from glmspark.launch.record import Home, Reason, State, home
from glmspark.nodes.node import LocalNode
from glmspark.nodes.transport import NodeError
from tests.unit.launch.starts import make_start

SECRETS = {
    "api key": "apikey-Zq81-deployment",
    "hub token": "hf_PlantedPlantedPlanted01",
    "environment": "envsecret-5512-planted",
    "spec": "specsecret-9931-planted",
    "lockstep": "lockstepsecret-2210-planted",
    "header": "headervalue-7741-planted",
    "file": "filevalue-1188-planted",
}
PLANTED = "\n".join(
    [
        "INFO a line that stays",
        f"vllm serve m --api-key {SECRETS['api key']}",
        f"HF_TOKEN={SECRETS['hub token']} {SECRETS['environment']}",
        f'"Authorization": "Bearer {SECRETS["header"]}"',
        f"SOME_PASSWORD={SECRETS['file']} {SECRETS['spec']} {SECRETS['lockstep']}",
    ]
)


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """One that failed, with secrets in everything that it left; and one on a node, as its agent keeps it."""
    state = tmp_path / "state"
    monkeypatch.setenv("GLMSPARK_STATE_DIR", str(state))
    monkeypatch.setenv("PLANTED_TOKEN", SECRETS["environment"])
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "token").write_text(SECRETS["hub token"] + "\n")
    place = home("glm")
    place.prepare()
    place.write_key(SECRETS["api key"])
    record = make_start("glm", "serves")
    record.reason = Reason(what="it ended", seen=PLANTED, next=PLANTED, at=1.0)
    record.ranks[0].env["HF_TOKEN"] = SECRETS["hub token"]
    record.close(State.FAILED)
    place.write(record)
    plant(place.logs / "rank-0.log")
    plant(place.path / "evidence" / "20261130T192000Z" / "log-tail.txt")
    plant(place.path / "lock.json")
    ranks = state / "ranks" / "glm"
    for name in (
        "logs/rank-0.log",
        "logs/agent.log",
        "evidence/1/stacks.txt",
        "evidence/2/a",
        "evidence/3/b",
    ):
        plant(ranks / name)
    (ranks / "state.json").write_text(json.dumps({"rank": 0, "state": "failed", "reason": {"seen": PLANTED}}))
    (ranks / "spec.json").write_text(json.dumps({"secrets": {"watch": SECRETS["spec"]}}))
    (ranks / "env").write_text(f"GLMSPARK_API_KEY={SECRETS['api key']}\nPLAIN={SECRETS['environment']}\n")
    (ranks / "lockstep-secret").write_text(SECRETS["lockstep"])
    for name in ("state.json", "ring/20261130T1904.jsonl", "peers/spark2/20261130T1904.jsonl"):
        plant(state / "guard" / name)
    (state / "guard" / "secret").write_text(SECRETS["spec"])
    return place


def plant(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PLANTED + "\n")


def gathered(place: Home) -> Bundle:
    bundle = Bundle(place.name)
    collect_machine(bundle)
    collect_home(bundle, place, place.read())
    files, notes = asyncio.run(collect_node(LocalNode("spark1"), place.name))
    for name, data in files.items():
        bundle.add(f"spark1/{name}", data)
    assert notes == []
    return bundle


def unpacked(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        assert {one.mode for one in members} == {0o600}
        return {one.name.partition("/")[2]: archive.extractfile(one).read() for one in members}  # type: ignore[union-attr]


def test_what_is_planted_anywhere_is_nowhere_in_the_archive(deployment: Home, tmp_path: Path) -> None:
    bundle = gathered(deployment)
    bundle.secrets |= {
        SECRETS["spec"],
        SECRETS["lockstep"],
    }  # this machine is node and control machine in one
    about = write(bundle, tmp_path / "b.tar.gz")
    files = unpacked(tmp_path / "b.tar.gz")
    assert set(files) >= {
        "about.json",
        "versions.json",
        "record.json",
        "recipe.json",
        "plan.json",
        "lock.json",
        "logs/rank-0.log",
        "evidence/20261130T192000Z/log-tail.txt",
        "guard/state.json",
        "guard/ring/20261130T1904.jsonl",
        "spark1/state.json",
        "spark1/logs/rank-0.log",
        "spark1/logs/agent.log",
        "spark1/evidence/2/a",
        "spark1/evidence/3/b",
        "spark1/guard/peers/spark2/20261130T1904.jsonl",
    }
    assert "spark1/evidence/1/stacks.txt" not in files
    for name, data in files.items():
        for what, secret in SECRETS.items():
            assert secret.encode() not in data, (name, what)
        assert Path(name).name not in ("spec.json", "env", "lockstep-secret", "api-key", "secret")
    assert b"INFO a line that stays" in files["logs/rank-0.log"]
    assert json.loads(files["record.json"])["reason"]["what"] == "it ended"
    assert about["removed"]["known secrets"] > 5
    assert about["files"]["logs/rank-0.log"] == len(files["logs/rank-0.log"])


def test_a_node_s_secrets_do_not_leave_it(deployment: Home) -> None:
    files, _ = asyncio.run(collect_node(LocalNode("spark1"), "glm"))
    for secret in ("api key", "environment", "spec", "lockstep"):
        assert all(SECRETS[secret].encode() not in data for data in files.values()), secret


def test_the_archive_is_whole_or_not_there_and_for_its_owner_alone(deployment: Home, tmp_path: Path) -> None:
    bundle = gathered(deployment)
    bundle.secrets |= {SECRETS["spec"], SECRETS["lockstep"]}
    path = tmp_path / "b.tar.gz"
    before = os.umask(0)
    try:
        write(bundle, path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".b.")] == []


def test_a_secret_that_is_left_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle("x", {"a.log": b"this-is-secret"}, secrets={"this-is-secret"})
    monkeypatch.setattr(bundles.Redactor, "text", lambda self, text: text)
    with pytest.raises(GlmsparkError, match=r"a\.log still holds a secret"):
        write(bundle, tmp_path / "b.tar.gz")
    assert list(tmp_path.iterdir()) == []


def test_names_are_replaced_if_asked(deployment: Home, tmp_path: Path) -> None:
    bundle = Bundle("glm", {"logs/a.log": b"/home/maria/x by maria from 8.8.8.8\n"}, names={"maria"})
    write(bundle, tmp_path / "b.tar.gz", anonymous=True)
    assert unpacked(tmp_path / "b.tar.gz")["logs/a.log"] == b"/home/user/x by user from [address 1]\n"


def test_of_a_long_log_the_end_without_the_line_that_was_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "MOST_FILE", 100)
    (tmp_path / "a.log").write_bytes(b"x" * 50 + SECRETS["file"].encode() + b"y" * 60 + b"\nlast\n")
    bundle = Bundle("x")
    bundle.file(tmp_path / "a.log", "a.log")
    assert bundle.files["a.log"] == b"last\n"
    assert bundle.notes


def test_no_more_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MOST_ALL", 10)
    bundle = Bundle("x")
    bundle.add("a", b"123456")
    bundle.add("b", b"123456")
    assert list(bundle.files) == ["a"]
    assert bundle.notes == ["b: left out, the bundle is full"]


def test_explain_reads_a_bundle(deployment: Home, tmp_path: Path) -> None:
    (deployment.logs / "rank-0.log").write_text("OSError: [Errno 28] No space left on device\n")
    bundle = Bundle("glm")
    collect_home(bundle, deployment, deployment.read())
    write(bundle, tmp_path / "b.tar.gz")
    case = Case("bundle")
    case.file(tmp_path / "b.tar.gz")
    assert [one.symptom.name for one in case.findings()] == ["disk-full"]
    assert [one.value for one in case.facts if one.name == "deployment.state"] == ["failed"]


def test_a_node_that_answers_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "_PROGRAM", Program("print('rubbish')"))
    with pytest.raises(NodeError, match="not understood"):
        asyncio.run(collect_node(LocalNode("spark1"), "glm"))


class Program:
    """What is sent to a node."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read_text(self, encoding: str) -> str:
        return self._text


def test_what_cannot_be_looked_through_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle("glm")
    bundle.add("logs/rank-0.log.1.gz", gzip.compress(b"HF_TOKEN=abcdefghijk"))
    bundle.add("logs/rank-0.log", b"a line")
    assert set(bundle.files) == {"logs/rank-0.log"}
    assert bundle.notes == ["logs/rank-0.log.1.gz: left out, for it is compressed (gzip)"]
    large = tmp_path / "rank-0.log.2.gz"
    large.write_bytes(gzip.compress(os.urandom(2000)))
    monkeypatch.setattr(bundles, "MOST_FILE", 1000)  # of which the end would be taken
    bundle.file(large, "logs/rank-0.log.2.gz")
    assert set(bundle.files) == {"logs/rank-0.log"}
    files = bundle_node.Files(1000, 10_000, [])
    files.file(large, "rank-0.log.2.gz")
    assert (files.files, files.notes) == ({}, ["rank-0.log.2.gz: left out, for it is compressed"])


def test_secrets_of_a_rank_s_environment_are_known_on_its_node(tmp_path: Path) -> None:
    spec = {"secrets": {}, "env": {"HF_TOKEN": "environment-token", "PORT": "12345678"}}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    assert bundle_node.secrets_of(tmp_path) == [b"environment-token"]
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"a environment-token b\n" + "environment-token".encode("utf-16-le"))
    files = bundle_node.Files(1000, 1000, bundle_node.secrets_of(tmp_path))
    files.file(log, "rank-0.log")
    assert base64.b64decode(files.files["rank-0.log"]) == b"a [removed] b\n[removed]"
