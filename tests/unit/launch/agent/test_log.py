"""The rank's log: bounded, harmless where the disk is full, and read without loss."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmspark.launch.node_agent.log import Log, Reader, evidence

LINES = st.lists(st.text(st.characters(codec="ascii", exclude_characters="\r\n"), max_size=12), max_size=20)


@given(LINES, st.lists(st.integers(1, 30), min_size=1, max_size=10))
@settings(max_examples=60)
def test_every_line_is_read_once_however_it_comes(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], pieces: list[int]
) -> None:
    path = tmp_path_factory.mktemp("log") / "rank-0.log"
    data = "".join(f"{line}\n" for line in lines).encode()
    log, reader, found = Log(path), Reader(path), []
    while data:
        size = pieces[len(data) % len(pieces)]
        log.add(data[:size])
        data = data[size:]
        found += reader.lines()
        reader = Reader(path, reader.at)  # whoever follows may come again
    assert found + reader.lines(final=True) == lines


def test_a_large_log_starts_again_and_nothing_is_lost_to_its_reader(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    log, reader, found = Log(path, most=100), Reader(path), []
    for number in range(40):
        log.add(f"line {number}\n".encode())
        if number % 7 == 0:
            while lines := reader.lines():
                found += lines
    while lines := reader.lines():
        found += lines
    assert found == [f"line {number}" for number in range(40)]
    assert path.stat().st_size <= 120
    assert path.with_name("rank-0.log.1").exists()


def test_a_full_disk_is_noted_when_it_is_over(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.symlink_to("/dev/full")
    log = Log(path)
    log.add(b"lost\n")
    assert (log.dropped, log.reason) == (5, "No space left on device")
    assert list(log.tail) == ["lost"]
    path.unlink()
    log.add(b"kept\n")
    assert path.read_text() == "[glmspark: 5 bytes were lost: No space left on device]\nkept\n"
    assert log.dropped == 0


@pytest.mark.parametrize(
    ("count", "last"), [(0, []), (1, ["c"]), (2, ["b", "c"]), (3, ["a", "b", "c"]), (9, ["a", "b", "c"])]
)
def test_the_last_lines(tmp_path: Path, count: int, last: list[str]) -> None:
    path = tmp_path / "rank-0.log"
    path.write_text("a\nb\nc\n")
    reader = Reader(path)
    reader.skip_to_last(count)
    assert reader.lines() == last
    with path.open("a") as file:
        file.write("d\n")
    assert reader.lines() == ["d"]


def test_the_evidence_begins_where_the_trouble_does() -> None:
    quiet = [f"INFO 11-30 12:00:00 [a.py:1] {number}" for number in range(20)]
    loud = ["(Worker pid=1) ERROR 11-30 12:00:01 [b.py:2] it broke", *(f"  more {n}" for n in range(30))]
    assert evidence(quiet) == quiet[-12:]
    assert evidence([*quiet, *loud]) == loud[:12]
    assert evidence(["a", "Traceback (most recent call last):", "ValueError: b"])[0].startswith("Traceback")
    assert evidence(["ValueError: b", "c"]) == ["ValueError: b", "c"]
    assert evidence([]) == []


def test_progress_bars_are_lines(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"10 %\r20 %\r")
    reader = Reader(path)
    assert reader.lines() == ["10 %", "20 %"]
    assert Reader(tmp_path / "none").lines() == []
