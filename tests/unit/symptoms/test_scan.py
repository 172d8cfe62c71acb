"""Reading logs: streamed, bounded, and whatever the bytes are."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmspark.symptoms.catalogue import catalogue
from glmspark.symptoms.scan import Scanner

MEMORY = b"NVRM: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)"


def scan(*chunks: bytes, deadline: float | None = None) -> Scanner:
    scanner = Scanner(catalogue(), deadline=deadline)
    scanner.read(chunks, "log")
    return scanner


def names(scanner: Scanner) -> set[str]:
    return {hit.symptom for hit in scanner.hits}


def test_a_hit_says_where_and_how_often() -> None:
    scanner = scan(b"one\n" + MEMORY + b"\ntwo\n" + MEMORY + b"\n")
    (hit,) = scanner.hits
    assert (hit.symptom, hit.source, hit.first, hit.times) == ("gpu-refused-memory", "log", 2, 2)
    assert hit.lines == [MEMORY.decode()]


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_lines_across_chunks(size: int) -> None:
    text = b"x\r\n" * 40 + MEMORY + b"\r" + b"y\n" * 40
    assert names(scan(*[text[at : at + size] for at in range(0, len(text), size)])) == {"gpu-refused-memory"}


def test_colours_and_the_last_line_without_an_end() -> None:
    assert names(scan(b"\x1b[31mNV_ERR\x1b[0m_NO_MEMORY")) == {"gpu-refused-memory"}


def test_a_line_that_never_ends_is_read_in_pieces() -> None:
    begin = time.monotonic()
    scanner = scan(*[b"x" * 100_000] * 20, MEMORY, *[b"y" * 100_000] * 20)
    assert names(scanner) == {"gpu-refused-memory"}
    assert time.monotonic() - begin < 10
    assert all(len(line) <= 300 for hit in scanner.hits for line in hit.lines)


def test_digits_count_where_a_pattern_looks_at_them() -> None:
    died = "Worker proc VllmWorker-1 died unexpectedly (exit code: -{}), shutting down executor.\n"
    assert "killed-from-outside" not in names(scan(died.format(6).encode()))
    assert "killed-from-outside" in names(scan(died.format(6).encode(), died.format(9).encode()))


def test_binary_rubbish() -> None:
    rubbish = random.Random(5).randbytes(3 << 20)
    scanner = scan(*[rubbish[at : at + 65536] for at in range(0, len(rubbish), 65536)])
    assert all(line.isprintable() for hit in scanner.hits for line in hit.lines)


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_bytes_around_a_line(chunks: list[bytes]) -> None:
    assert "gpu-refused-memory" in names(scan(*chunks, b"\n" + MEMORY + b"\n", *chunks))


def test_a_deadline_ends_the_reading() -> None:
    def endless() -> Iterator[bytes]:
        number = 0
        while True:
            number += 1
            yield f"line {number} {random.Random(number).random()}\n".encode() * 100

    scanner = Scanner(catalogue(), deadline=time.monotonic() + 0.2)
    scanner.read(endless(), "log")
    assert scanner.late


def test_a_long_log_of_the_same_lines_is_fast() -> None:
    """8 MB of an access log: blocks without a pattern's text are counted only."""
    line = '(APIServer pid=1) INFO:     127.0.0.1:{} - "GET /health HTTP/1.1" 200 OK\n'
    block = "".join(line.format(40000 + number) for number in range(15_000)).encode()
    begin = time.process_time()
    scan(*[block] * 6)
    assert time.process_time() - begin < 2
