"""Memory as /proc tells it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.guard.files import Roots
from glmspark.guard.memory import (
    HUGE,
    Memory,
    MemoryReader,
    parse_buddyinfo,
    parse_group_stat,
    parse_meminfo,
    parse_pressure,
    parse_vmstat,
    within_group,
)
from tests.unit.guard.spark import GIB, MEMORY, put

RECORDED = Path(__file__).parents[1] / "nodes/recorded/debian"
PRESSURE = (
    "some avg10=12.50 avg60=1.00 avg300=0.20 total=12173433\nfull avg10=3.25 avg60=0.00 avg300=0.00 total=6\n"
)
BUDDY = (
    "Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3 \n"
)
PARSERS = (parse_meminfo, parse_buddyinfo, parse_vmstat, parse_pressure, parse_group_stat)


def test_meminfo_as_recorded() -> None:
    found = parse_meminfo((RECORDED / "meminfo.txt").read_text())
    assert found.total > found.available > 0
    assert 0 < found.page_cache < found.total
    assert found.used == found.total - found.free - found.page_cache


@pytest.mark.parametrize("row", ["MemTotal", "MemFree", "MemAvailable"])
def test_meminfo_without_a_basic_row_is_refused(row: str) -> None:
    text = (RECORDED / "meminfo.txt").read_text()
    left = "".join(line for line in text.splitlines(keepends=True) if not line.startswith(row))
    with pytest.raises(ValueError, match=row):
        parse_meminfo(left)


def test_free_blocks_count_from_2_mib_by_the_page_size() -> None:
    assert parse_buddyinfo(BUDDY, page=4096) == 2 * 2**20 + 3 * 4 * 2**20
    # A kernel with pages of 64 KiB has 2 MiB at order 5.
    assert parse_buddyinfo("Node 0, zone Normal 9 9 9 9 9 1 0 1\n", page=65536) == 2 * 2**20 + 8 * 2**20
    assert parse_buddyinfo((RECORDED / "buddyinfo.txt").read_text().partition("\n")[2], page=4096) % HUGE == 0


@given(st.lists(st.integers(0, 10**6), min_size=11, max_size=11))
def test_large_blocks_are_never_more_than_all(counts: list[int]) -> None:
    row = f"Node 0, zone Normal {' '.join(map(str, counts))}\n"
    every = sum(count * (4096 << order) for order, count in enumerate(counts))
    assert 0 <= parse_buddyinfo(row, page=4096) <= every


def test_swap_traffic_and_pressure() -> None:
    assert parse_vmstat("nr_free 1\npswpin 3\npswpout 10\nfoo 1\n", page=4096) == (3 * 4096, 10 * 4096)
    assert parse_pressure(PRESSURE) == (12.5, 3.25)
    with pytest.raises(ValueError, match="some"):
        parse_pressure("")


@pytest.mark.parametrize("parse", PARSERS)
@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=300) | st.sampled_from([BUDDY, PRESSURE]))
def test_no_text_does_more_than_be_refused(parse: object, text: str) -> None:
    try:
        parse(text)  # type: ignore[operator]
    except ValueError:
        return


def test_a_control_groups_limit_is_all_there_is() -> None:
    found = within_group(MEMORY, 4 * GIB, 3 * GIB, GIB)
    assert (found.total, found.free, found.available, found.page_cache) == (4 * GIB, GIB, 2 * GIB, GIB)
    assert within_group(MEMORY, 2**63, 3 * GIB, GIB) == MEMORY


def test_the_reader_names_what_it_cannot_read(tmp_path: Path) -> None:
    put(
        tmp_path, "/proc/meminfo", "MemTotal: 1000 kB\nMemFree: 500 kB\nMemAvailable: 600 kB\nCached: 90 kB\n"
    )
    put(tmp_path, "/proc/buddyinfo", "nonsense\n")
    put(tmp_path, "/proc/pressure/memory", PRESSURE)
    put(tmp_path, "/proc/vmstat", "x 1\npswpin 0\npswpout 0\n")
    reader, blind = MemoryReader(Roots(str(tmp_path))), dict[str, str]()
    first = reader.read(10.0, blind)
    assert isinstance(first, Memory)
    assert first.psi_some == 12.5
    assert first.huge_free is None
    assert set(blind) == {"buddyinfo"}
    put(tmp_path, "/proc/vmstat", "x 1\npswpin 0\npswpout 512\n")
    second = reader.read(12.0, {})
    assert second is not None
    assert second.swap_out == pytest.approx(512 * 4096 / 2)
    put(tmp_path, "/proc/meminfo", "")
    blind = {}
    assert reader.read(13.0, blind) is None
    assert "MemTotal" in blind["meminfo"]


def test_the_reader_takes_a_control_group(tmp_path: Path) -> None:
    group = tmp_path / "group"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(f"{2**28}\n")
    (group / "memory.usage_in_bytes").write_text(f"{2**27}\n")
    (group / "memory.stat").write_text(f"cache 1\ntotal_cache {2**20}\ntotal_shmem 4096\n")
    blind: dict[str, str] = {}
    found = MemoryReader(Roots(), str(group)).read(1.0, blind)
    assert found is not None
    assert (found.total, found.free, found.page_cache) == (2**28, 2**27, 2**20 - 4096)
    assert "control group" not in blind
