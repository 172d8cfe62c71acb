"""Which way of reading is taken: found out while reading, kept to, and given up when the disk changes."""

from __future__ import annotations

from collections import Counter, deque

import pytest

from glmspark.engine.loader.choice import LOOKING_AGAIN, PROBE_SECONDS, STRETCH, Choice
from glmspark.engine.loader.files import Mode

MIB = 2**20
THREADS = 8


class Disk:
    """A disk of so many bytes a second each way; `ahead` pieces are under way at once."""

    def __init__(self, choice: Choice, direct: float, buffered: float, ahead: int = 7) -> None:
        self.choice, self.rates = choice, {Mode.DIRECT: direct, Mode.BUFFERED: buffered}
        self.ahead, self.seconds, self.ways = ahead, 0.0, list[Mode]()
        self._under_way: deque[Mode] = deque()

    def read(self, pieces: int, nbytes: int = 16 * MIB) -> Counter[Mode]:
        """Read some more; how many each way."""
        before = len(self.ways)
        for _ in range(pieces):
            way = self.choice.next()
            self._under_way.append(way)
            self.ways.append(way)
            if len(self._under_way) > self.ahead:
                took = nbytes / self.rates[self._under_way.popleft()]
                self.seconds += took
                self.choice.add(nbytes, took * THREADS)
        return Counter(self.ways[before:])


@pytest.mark.parametrize(
    ("direct", "buffered", "chosen"),
    [(4e9, 1e9, Mode.DIRECT), (1e9, 4e9, Mode.BUFFERED), (1e9, 1.02e9, Mode.DIRECT), (1e9, 1e9, Mode.DIRECT)],
)
def test_the_faster_way_is_taken_and_a_tie_goes_to_direct_reads(direct, buffered, chosen) -> None:
    disk = Disk(Choice(None, THREADS), direct, buffered)
    disk.read(200)
    assert disk.choice.mode is chosen
    assert not disk.choice.probing
    assert disk.choice.probe_seconds < PROBE_SECONDS + 0.2
    assert disk.choice.rate(Mode.DIRECT) == pytest.approx(direct)
    assert disk.choice.rate(Mode.BUFFERED) == pytest.approx(buffered)


def test_a_plain_difference_is_seen_after_two_stretches_each() -> None:
    disk = Disk(Choice(None, THREADS), 4e9, 1e9)
    disk.read(4 * STRETCH + 8)
    assert disk.choice.mode is Mode.DIRECT
    assert not disk.choice.probing


def test_a_slow_disk_ends_the_probe_after_its_time() -> None:
    disk = Disk(Choice(None, THREADS), 1.2e8, 1.21e8)  # 0.14 s a piece
    disk.read(2 * STRETCH + 8)
    assert not disk.choice.probing
    assert disk.choice.probe_seconds < PROBE_SECONDS + 0.2


def test_reading_all_by_turns_costs_little_beside_the_faster_way() -> None:
    disk = Disk(Choice(None, THREADS), 8e9, 2e9)
    pieces = 24_000  # 400 GB
    disk.read(pieces)
    probed = 4 * STRETCH * 16 * MIB / 2e9
    assert disk.seconds < pieces * 16 * MIB / 8e9 * (1 + LOOKING_AGAIN) + probed


def test_a_disk_that_changes_is_read_the_other_way() -> None:
    disk = Disk(Choice(None, THREADS), 2e9, 1.5e9)
    disk.read(400)
    assert disk.choice.mode is Mode.DIRECT
    disk.rates[Mode.DIRECT] = 0.7e9
    assert disk.read(400)[Mode.BUFFERED] > 100
    assert disk.choice.mode is Mode.BUFFERED
    assert disk.choice.changes == 1


def test_small_differences_change_nothing_later() -> None:
    disk = Disk(Choice(None, THREADS), 1e9, 1e9)
    disk.read(200)
    disk.rates[Mode.BUFFERED] = 1.1e9
    disk.read(1000)
    assert disk.choice.mode is Mode.DIRECT
    assert disk.choice.changes == 0


@pytest.mark.parametrize("mode", list(Mode))
def test_a_way_that_was_asked_for_is_kept_to(mode: Mode) -> None:
    disk = Disk(Choice(mode, THREADS), 1e9, 1e9)
    assert disk.read(100) == {mode: 100}
    assert not disk.choice.measured


def test_where_direct_reads_are_refused_everything_is_buffered() -> None:
    choice = Choice(None, THREADS)
    choice.next()
    choice.only_buffered()
    assert {choice.next() for _ in range(50)} == {Mode.BUFFERED}
    choice.add(1, 1.0)
