"""Cases to explain: logs and data from wherever they come, read within bounds."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmspark.errors import UsageError
from glmspark.launch import case_facts
from glmspark.launch.case import Case, Limits
from glmspark.launch.explain import explain_file

MEMORY = b"NVRM: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)\n"
FULL = b"OSError: [Errno 28] No space left on device\n"


def names(case: Case) -> list[str]:
    return [one.symptom.name for one in case.findings()]


def test_a_log(tmp_path: Path) -> None:
    (tmp_path / "vllm.log").write_bytes(b"hello\n" + FULL)
    case = explain_file(str(tmp_path / "vllm.log"))
    assert names(case) == ["disk-full"]
    assert case.to_json()["findings"][0]["seen"] == [{"source": "vllm.log", "line": 2, "times": 1}]


def test_standard_input() -> None:
    case = explain_file("-", io.BytesIO(FULL))
    assert names(case) == ["disk-full"]
    assert case.about == "standard input"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_logs_in_other_encodings(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.log").write_text(FULL.decode() * 3, encoding=encoding)
    assert names(explain_file(str(tmp_path / "a.log"))) == ["disk-full"]


def test_compressed_logs_and_archives(tmp_path: Path) -> None:
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(FULL))
    assert names(explain_file(str(tmp_path / "a.log.gz"))) == ["disk-full"]
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as archive:
        for name, data in (
            ("logs/rank-0.log", FULL),
            ("guard.json", b'{"level": "critical", "readings": {}}'),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    case = explain_file(str(tmp_path / "b.tar.gz"))
    assert names(case) == ["disk-full"]
    assert [one.value for one in case.facts if one.name == "guard.level"] == ["critical"]


@pytest.mark.parametrize(
    "data",
    [b"\x1f\x8b", b"\x1f\x8b\x08\x00rubbish", gzip.compress(FULL * 100)[:60]],
    ids=["its first bytes", "rubbish", "cut off"],  # the last holds the time it was made at
)
def test_a_compressed_file_that_is_not_whole(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.gz").write_bytes(data)
    try:
        case = explain_file(str(tmp_path / "x.gz"))
    except UsageError as error:
        assert "x.gz" in error.message  # noqa: PT017 - either is right
    else:
        assert case.notes


def test_a_directory_without_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0.log").write_bytes(FULL)
    (tmp_path / "state.json").write_text(
        json.dumps({"rank": 0, "state": "failed", "reason": {"signal": "SIGKILL"}})
    )
    (tmp_path / "away").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    case = explain_file(str(tmp_path))
    assert sorted(case.sources) == ["logs/rank-0.log", "state.json"]
    assert set(names(case)) == {"disk-full", "killed-from-outside"}


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file and no deployment"):
        explain_file(str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="has no files"):
        explain_file(str(tmp_path))


def test_a_huge_log_is_read_at_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "huge.log"
    with path.open("wb") as file:
        file.write(FULL)
        file.seek(3 << 30)
        file.write(b"\n" + MEMORY)
    begin = time.monotonic()
    case = Case("huge", Limits(head=1 << 20, tail=1 << 20))
    case.file(path)
    assert set(names(case)) == {"disk-full", "gpu-refused-memory"}
    assert "in its middle" in case.notes[0]
    assert time.monotonic() - begin < 60


def test_a_long_stream_is_read_at_both_ends_in_bounded_memory() -> None:
    class Long(io.RawIOBase):
        """FULL, then 64 MiB, then MEMORY."""

        left = 64

        def read(self, size: int = -1) -> bytes:
            if self.left == 64:
                self.left -= 1
                return FULL
            self.left -= 1
            return b"x y z\n" * (size // 6) if self.left > 0 else MEMORY if self.left == 0 else b""

    case = Case("stream", Limits(head=1 << 20, tail=2 << 20))
    case.stream(Long(), "stdin")  # type: ignore[arg-type]
    assert set(names(case)) == {"disk-full", "gpu-refused-memory"}
    assert case.scanner.bytes < 5 << 20


def test_a_stream_without_an_end_is_read_for_as_long_as_said() -> None:
    class Endless(io.RawIOBase):
        """What a small compressed file may hold."""

        begin = time.monotonic()

        def read(self, size: int = -1) -> bytes:
            assert time.monotonic() - self.begin < 30
            return b"x\n" * 10_000

    case = Case("bomb", Limits(head=1 << 10, tail=1 << 10, seconds=0.1))
    case.stream(Endless(), "stdin")  # type: ignore[arg-type]
    assert "not all was looked at: 0.1 s were over" in case.notes


def test_time_runs_out() -> None:
    case = Case("slow", Limits(seconds=0.0))
    case.text("x\n" * 10, "a")
    case.stream(io.BytesIO(b"x\n" * 100_000), "b")
    assert "not all was looked at: 0 s were over" in case.notes


def test_the_first_error_is_told_where_nothing_is_known() -> None:
    case = Case("unknown")
    case.text("Traceback (most recent call last):\n  File 'a.py', line 1\nKeyError: 'b'\n", "log")
    assert names(case) == []
    assert case.first_error() == ("log", "KeyError: 'b'\n  at File 'a.py', line 1")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = ["verdicts", "level", "readings", "recipe", "ranks", "rank", "state", "what", "kind", "alerts"]


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=8))
def test_facts_of_anything(value: dict[str, Any]) -> None:
    case_facts.of_json(value)
    case_facts.of_record(value)
    case_facts.of_guard(value)
    case_facts.of_state(value)


@settings(max_examples=25)
@given(st.binary(max_size=300), st.sampled_from(["a.json", "a.log", "a.gz"]))
def test_any_file(tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str) -> None:
    path = tmp_path_factory.mktemp("any") / name
    path.write_bytes(data)
    case = Case("any")
    case.file(path)
    json.dumps(case.to_json())


def test_facts_of_a_guard() -> None:
    facts = case_facts.of_guard(
        {
            "level": "critical",
            "phase": "loading",
            "alerts": [{"kind": "memory-critical"}],
            "actions": [{"action": "drop-page-cache"}],
            "readings": {"gpu": [{"util": 96, "power_w": 20.5}]},
        },
        "spark1",
    )
    assert {one.name: one.value for one in facts} == {
        "guard.level": "critical",
        "guard.phase": "loading",
        "guard.alert": "memory-critical",
        "guard.action": "drop-page-cache",
        "gpu.util": 96,
        "gpu.power_w": 20.5,
    }
    assert str(next(iter(facts))) == "spark1: guard.level: critical"


def test_checks_of_links_and_paths_go_by_their_first_word() -> None:
    rows = [
        {"check": "RDMA rocep1s0f0", "node": "spark1", "state": "blocked"},
        {"check": "path to spark2 198.18.0.2", "node": "spark1", "state": "ok"},
        {"check": "ssh", "node": "spark3", "state": "blocked"},
    ]
    assert [str(one) for one in case_facts.of_checks(rows)] == [
        "spark1: check.RDMA: blocked",
        "spark1: check.path: ok",
        "spark3: check.ssh: blocked",
        "spark3: node.reached: False",
    ]


def test_what_checks_quote_is_no_line_of_the_case() -> None:
    case = Case("doctor")
    quoted = {
        "check": "kernel log",
        "node": "a",
        "state": "slow",
        "evidence": "killed: Out of memory: Killed process 1",
    }
    case.known({"verdicts": [quoted]}, "doctor.json")
    assert names(case) == []
    assert [str(one) for one in case.facts] == ["a: check.kernel log: slow"]
