"""The ring: what is recorded is on disk, within its size, and readable after a crash."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.guard import ring
from glmspark.guard.ring import Recorder, read_lines, segment_name, segment_time, segments, trim

NOON = 1_796_040_000.0


def test_names_sort_as_time_does() -> None:
    assert segment_name(NOON) == "20261130T1200.jsonl"


@given(st.lists(st.floats(0, 4e9), min_size=2, max_size=5))
def test_later_is_never_before(times: list[float]) -> None:
    names = [segment_name(at) for at in sorted(times)]
    assert names == sorted(names)
    assert all(ring.SEGMENT.fullmatch(name) for name in names)


def test_lines_and_state_are_written_and_minutes_closed(tmp_path: Path) -> None:
    closed: list[str] = []
    recorder = Recorder(str(tmp_path), closed=closed.append, clock=lambda: NOON + 61)
    for at in (NOON, NOON + 1, NOON + 61):
        recorder.line(at, {"t": at})
        recorder.state(at, {"time": at})
    recorder.close()
    assert [one["t"] for one in read_lines(recorder.directory)] == [NOON, NOON + 1, NOON + 61]
    assert [one["t"] for one in read_lines(recorder.directory, last=1)] == [NOON + 61]
    assert closed == ["20261130T1200.jsonl"]
    assert json.loads((tmp_path / "state.json").read_text()) == {"time": NOON + 61}
    assert (tmp_path / "state.json").stat().st_mode & 0o777 == 0o640
    assert not list(tmp_path.glob("*.tmp"))


def test_a_line_comes_onto_the_disk_by_itself(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path), clock=lambda: NOON)
    recorder.line(NOON, {"t": 1})
    end = time.monotonic() + 60
    while time.monotonic() < end and not list(read_lines(recorder.directory)):
        time.sleep(0.01)
    assert [one["t"] for one in read_lines(recorder.directory)] == [1]
    recorder.close()


def test_a_torn_line_is_left_out_and_the_next_start_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "ring"
    directory.mkdir()
    (directory / segment_name(NOON)).write_bytes(b'{"t":1}\n{"t":2,"mem')
    (directory / "notes.txt").write_text("not ours")
    recorder = Recorder(str(tmp_path), clock=lambda: NOON)
    recorder.line(NOON + 2, {"t": 3})
    recorder.close()
    assert [one["t"] for one in read_lines(str(directory))] == [1, 3]
    assert (directory / "notes.txt").exists()


@given(st.binary(max_size=200))
def test_any_file_can_be_read(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    directory = tmp_path_factory.mktemp("ring")
    (directory / segment_name(NOON)).write_bytes(data)
    list(read_lines(str(directory)))


def test_old_and_too_much_goes_the_last_never(tmp_path: Path) -> None:
    for minute in range(90):
        (tmp_path / segment_name(NOON + 60 * minute)).write_bytes(b"x" * 100)
    trim(str(tmp_path), now=NOON + 60 * 89)
    assert len(segments(str(tmp_path))) == 61
    trim(str(tmp_path), now=NOON + 60 * 89, size=1000)
    left = segments(str(tmp_path))
    assert len(left) == 10
    assert left[-1] == segment_name(NOON + 60 * 89)
    trim(str(tmp_path), now=NOON + 1e6, size=0)
    assert segments(str(tmp_path)) == left[-1:]


@given(st.integers(0, 6_000_000))
def test_a_name_tells_its_minute(minute: int) -> None:
    assert segment_time(segment_name(60.0 * 20 * minute)) == 60.0 * 20 * minute


def test_a_clock_that_was_ahead_costs_nothing_of_the_present(tmp_path: Path) -> None:
    for minute in range(5):
        (tmp_path / segment_name(NOON + 1e7 + 60 * minute)).write_bytes(b"x" * 100)
    wrong = segments(str(tmp_path))
    for minute in range(30):
        (tmp_path / segment_name(NOON + 60 * minute)).write_bytes(b"x" * 100)
    now = NOON + 60 * 29
    trim(str(tmp_path), now=now)
    assert len(segments(str(tmp_path))) == 35  # it may be what was seen just before the clock was set
    trim(str(tmp_path), now=now, size=3200)
    assert segments(str(tmp_path))[-2:] == wrong[-2:]
    assert len(segments(str(tmp_path))) == 32
    for minute in range(30, 62):
        (tmp_path / segment_name(NOON + 60 * minute)).write_bytes(b"x" * 100)
    trim(str(tmp_path), now=NOON + 60 * 61)
    assert segments(str(tmp_path))[-1] == segment_name(NOON + 60 * 61)


def test_a_disk_that_stays_full_does_not_cost_the_last_minutes(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path), clock=lambda: NOON)
    recorder.close()
    for minute in range(60):
        (tmp_path / "ring" / segment_name(NOON - 60 * minute)).write_text("{}\n")
    for _ in range(4):
        recorder._failed(OSError(28, os.strerror(28)))
    assert len(segments(recorder.directory)) == 30
    for _ in range(4):
        recorder._freed = -1e9
        recorder._failed(OSError(28, os.strerror(28)))
    left = segments(recorder.directory)
    assert (len(left), left[-1]) == (10, segment_name(NOON))


def test_a_full_disk_costs_the_oldest_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "ring"
    directory.mkdir()
    for minute in range(60):
        (directory / segment_name(NOON - 60 * minute)).write_text("{}\n")
    real, full = ring.write_all, [True]

    def refuse(handle: int, data: bytes) -> None:
        if full[0]:
            raise OSError(28, os.strerror(28))
        real(handle, data)

    monkeypatch.setattr(ring, "write_all", refuse)
    recorder = Recorder(str(tmp_path), clock=lambda: NOON)
    recorder.line(NOON, {"t": 1})
    end = time.monotonic() + 60
    while time.monotonic() < end and recorder.problem is None:
        time.sleep(0.01)
    assert "No space left" in str(recorder.problem)
    assert len(segments(str(directory))) == 30
    full[0] = False
    recorder.line(NOON + 1, {"t": 2})
    while time.monotonic() < end and recorder.problem is not None:
        time.sleep(0.01)
    assert recorder.problem is None
    recorder.close()
    assert list(read_lines(str(directory)))[-1] == {"t": 2}
