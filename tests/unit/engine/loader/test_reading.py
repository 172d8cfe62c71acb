"""Pieces, files and the reader: every byte arrives, once, whatever the disk does."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmspark.engine.loader.files import Mode, OpenFile, ReadError
from glmspark.engine.loader.pieces import ALIGN, Piece, blocks_of, pieces_of
from glmspark.engine.loader.progress import Progress
from glmspark.engine.loader.reader import Reader, Settings
from glmspark.engine.shards import Stored, read_header
from tests.unit.engine.loader.shards import write_shard

SMALL = Settings(threads=3, block=ALIGN, piece=4 * ALIGN, buffers=3)
MODES = [Mode.DIRECT, Mode.BUFFERED, None]


def stored(name: str, offset: int, nbytes: int, file: str = "f") -> Stored:
    return Stored(name, Path(file), "U8", (nbytes,), offset, nbytes)


def settings_for(mode: Mode | None) -> Settings:
    return Settings(SMALL.threads, SMALL.block, SMALL.piece, SMALL.buffers, mode)


def read_all(wanted: list[Stored], options: Settings, **more: object) -> dict[str, bytes]:
    """Every tensor's bytes through the reader, handed over as a loader does."""
    found: dict[str, bytes] = {}
    for loaded in Reader(pieces_of(wanted, options.piece), options, **more).loaded():  # type: ignore[arg-type]
        piece = loaded.piece
        for tensor in piece.tensors:
            begin, end = max(tensor.offset, piece.begin), min(tensor.end, piece.end)
            found[tensor.name] = found.get(tensor.name, b"") + bytes(loaded.view(begin, end))
    return found


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 9_000)), max_size=30),
    st.integers(1, 4),
    st.sampled_from([0, 100, 5000]),
)
def test_pieces_hold_every_byte_once_and_keep_their_bounds(gaps_and_sizes, blocks, gap) -> None:
    wanted, position = [], 8
    for number, (hole, size) in enumerate(gaps_and_sizes):
        position += hole
        wanted.append(stored(str(number), position, size))
        position += size
    limit = blocks * ALIGN
    covered: dict[str, int] = {}
    last = 0
    for piece in pieces_of(wanted, limit, gap):
        assert piece.nbytes <= limit
        assert piece.begin >= last
        last = piece.end
        begin, end = piece.aligned
        assert begin % ALIGN == end % ALIGN == 0
        assert end - begin <= limit + 2 * ALIGN
        ranges = list(blocks_of(piece, ALIGN))
        assert (ranges[0][0], ranges[-1][1]) == (begin, end) if ranges else begin == end
        for tensor in piece.tensors:
            covered[tensor.name] = (
                covered.get(tensor.name, 0) + min(tensor.end, piece.end) - max(tensor.offset, piece.begin)
            )
    assert covered == {tensor.name: tensor.nbytes for tensor in wanted}


def test_a_hole_is_read_along_where_it_is_small() -> None:
    wanted = [stored("a", 0, 10), stored("b", 20, 10), stored("c", 10_000, 10)]
    assert [[t.name for t in piece.tensors] for piece in pieces_of(wanted, ALIGN * 4, gap=64)] == [
        ["a", "b"],
        ["c"],
    ]


def test_a_large_tensor_is_cut_at_whole_blocks() -> None:
    parts = list(pieces_of([stored("a", 100, 3 * ALIGN)], 2 * ALIGN))
    assert [(part.begin, part.end) for part in parts] == [(100, 2 * ALIGN), (2 * ALIGN, 3 * ALIGN + 100)]
    assert all(part.partial for part in parts)
    with pytest.raises(ValueError, match="multiple of 4096"):
        list(pieces_of([], 1000))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pad", [0, 1, 3, 4096])
def test_every_byte_arrives(tmp_path, mode, pad) -> None:
    contents: dict[str, bytes] = {}
    files = []
    for number in range(3):
        path = tmp_path / f"{number}.safetensors"
        sizes = {f"{number}.{i}": ("U8", [size]) for i, size in enumerate((1, 0, 5000, 70_000, 17, 4096, 9))}
        contents |= write_shard(path, sizes, pad=pad, seed=number)
        files.append(path)
    write_shard(tmp_path / "empty.safetensors", {})
    files.insert(1, tmp_path / "empty.safetensors")
    wanted = [tensor for path in files for tensor in read_header(path)]
    assert read_all(wanted, settings_for(mode)) == contents


def test_only_what_is_wanted_is_read(tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    contents = write_shard(path, {f"t{i}": ("U8", [600_000]) for i in range(6)})
    seen: list[tuple[int, int]] = []

    def counted(descriptor: int, views: Sequence[memoryview], offset: int, flags: int) -> int:
        count = os.preadv(descriptor, views, offset, flags)
        seen.append((offset, offset + count))
        return count

    wanted = [tensor for tensor in read_header(path) if tensor.name in {"t1", "t5"}]
    found = read_all(wanted, settings_for(Mode.DIRECT), open_file=lambda file: OpenFile(file, counted))
    assert found == {name: contents[name] for name in ("t1", "t5")}
    assert sum(end - begin for begin, end in seen) < 1_200_000 + 8 * ALIGN


def test_nothing_of_the_file_stays_in_the_page_cache(tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    write_shard(path, {f"t{i}": ("U8", [300_000]) for i in range(20)})
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    wanted = read_header(path)
    for mode in (Mode.DIRECT, Mode.BUFFERED):
        path.read_bytes()
        assert cached(descriptor) > 0
        read_all(wanted, settings_for(mode))
        assert cached(descriptor) == 0
    os.close(descriptor)


def cached(descriptor: int) -> int:
    """How many of a file's first bytes a read finds in the page cache (RWF_NOWAIT waits for no disk)."""
    try:
        return os.preadv(descriptor, [bytearray(1 << 20)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return 0


@pytest.mark.parametrize("mode", [Mode.DIRECT, Mode.BUFFERED])
def test_short_reads_are_gone_on_with(tmp_path, mode) -> None:
    path = tmp_path / "a.safetensors"
    contents = write_shard(path, {"x": ("U8", [50_000])})

    def short(descriptor: int, views: Sequence[memoryview], offset: int, flags: int) -> int:
        # A third of what was asked: O_DIRECT then ends within a block.
        count = os.preadv(descriptor, views, offset, flags)
        return max(1, count // 3)

    found = read_all(read_header(path), settings_for(mode), open_file=lambda file: OpenFile(file, short))
    assert found == contents


def refusing(error: int, *, direct_only: bool):
    def preadv(descriptor: int, views: Sequence[memoryview], offset: int, flags: int) -> int:
        if not direct_only or os.O_DIRECT & fcntl_flags(descriptor):
            raise OSError(error, os.strerror(error))
        return os.preadv(descriptor, views, offset, flags)

    return preadv


def fcntl_flags(descriptor: int) -> int:
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_GETFL)


@pytest.mark.parametrize("mode", MODES)
def test_a_file_system_that_refuses_direct_reads(tmp_path, mode) -> None:
    path = tmp_path / "a.safetensors"
    contents = write_shard(path, {f"x{i}": ("U8", [20_000]) for i in range(9)})
    preadv = refusing(errno.EINVAL, direct_only=True)
    found = read_all(read_header(path), settings_for(mode), open_file=lambda file: OpenFile(file, preadv))
    assert found == contents


def test_a_kernel_that_does_not_know_the_flag(tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    contents = write_shard(path, {"x": ("U8", [20_000])})

    def old(descriptor: int, views: Sequence[memoryview], offset: int, flags: int) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return os.preadv(descriptor, views, offset)

    found = read_all(
        read_header(path), settings_for(Mode.BUFFERED), open_file=lambda file: OpenFile(file, old)
    )
    assert found == contents


@pytest.mark.parametrize("mode", [Mode.DIRECT, Mode.BUFFERED])
def test_a_failing_disk_is_named_with_file_and_offset(tmp_path, mode) -> None:
    path = tmp_path / "a.safetensors"
    write_shard(path, {f"x{i}": ("U8", [20_000]) for i in range(9)})

    def failing(descriptor: int, views: Sequence[memoryview], offset: int, flags: int) -> int:
        if offset >= 8 * ALIGN:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.preadv(descriptor, views, offset, flags)

    with pytest.raises(
        ReadError, match=rf"{path}: reading \d+ bytes at offset {8 * ALIGN} failed: Input/output error"
    ):
        read_all(read_header(path), settings_for(mode), open_file=lambda file: OpenFile(file, failing))
    assert not [link for link in Path("/proc/self/fd").iterdir() if str(path) in str(link.resolve())]


def test_a_file_that_has_lost_its_end_since(tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    write_shard(path, {"x": ("U8", [50_000])})
    wanted = read_header(path)
    os.truncate(path, 30_000)
    with pytest.raises(ReadError, match=rf"{path} ends at byte 30000, \d+ bytes before its header says"):
        read_all(wanted, settings_for(Mode.DIRECT))


def test_a_file_that_is_gone(tmp_path) -> None:
    with pytest.raises(ReadError, match="cannot be opened: No such file"):
        read_all([stored("x", 8, 10, str(tmp_path / "gone"))], SMALL)


def test_buffers_are_bounded_while_the_consumer_holds_its_last_tensor(tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    contents = write_shard(path, {f"x{i}": ("U8", [10_000]) for i in range(60)})
    options = Settings(threads=2, block=ALIGN, piece=4 * ALIGN, buffers=4, mode=Mode.DIRECT)
    reader = Reader(pieces_of(read_header(path), options.piece), options)
    held = None
    for loaded in reader.loaded():
        for tensor in loaded.piece.tensors:
            view = loaded.view(tensor.offset, tensor.end)
            if held is not None:
                assert bytes(held[1]) == contents[held[0]]  # not written over while it is held
            held = (tensor.name, view)
        del loaded
    assert len(reader._buffers) <= 4


def test_tensors_that_are_kept_are_never_written_over(tmp_path, caplog) -> None:
    path = tmp_path / "a.safetensors"
    contents = write_shard(path, {f"x{i}": ("U8", [10_000]) for i in range(30)})
    options = Settings(threads=2, block=ALIGN, piece=4 * ALIGN, buffers=3, mode=Mode.DIRECT)
    kept = {}
    for loaded in Reader(pieces_of(read_header(path), options.piece), options).loaded():
        kept |= {t.name: loaded.view(t.offset, t.end) for t in loaded.piece.tensors}
        del loaded
    assert {name: bytes(view) for name, view in kept.items()} == contents
    assert "keeps tensors" in caplog.text


def test_a_consumer_that_stops_early_leaves_no_thread_and_no_file(tmp_path) -> None:
    import threading

    path = tmp_path / "a.safetensors"
    write_shard(path, {f"x{i}": ("U8", [10_000]) for i in range(30)})
    iterator = Reader(pieces_of(read_header(path), SMALL.piece), SMALL).loaded()
    next(iterator)
    iterator.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("glmspark-read")]
    assert not [link for link in Path("/proc/self/fd").iterdir() if str(path) in str(link.resolve())]


@pytest.mark.parametrize(("slow", "chosen"), [(Mode.DIRECT, Mode.BUFFERED), (Mode.BUFFERED, Mode.DIRECT)])
def test_the_faster_way_is_chosen_and_nothing_is_read_twice(tmp_path, slow, chosen) -> None:
    path = tmp_path / "a.safetensors"
    contents = write_shard(path, {f"x{i}": ("U8", [16_000]) for i in range(60)})
    seen: list[int] = []

    class Disk(OpenFile):
        def read(self, view: memoryview, begin: int, needed: int, mode: Mode) -> None:
            seen.append(begin)
            if mode is slow:
                time.sleep(0.005)
            super().read(view, begin, needed, mode)

    options = settings_for(None)
    reader = Reader(pieces_of(read_header(path), options.piece), options, open_file=Disk)
    count = sum(len(loaded.piece.tensors) for loaded in reader.loaded())
    assert (count, reader.choice.mode) == (len(contents), chosen)
    assert len(seen) <= len(set(seen)) + len(contents)  # a block that two pieces share is read for each
    assert reader.choice.probe_seconds < 1


def test_where_direct_reads_are_refused_nothing_is_probed(tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    write_shard(path, {f"x{i}": ("U8", [16_000]) for i in range(40)})
    preadv = refusing(errno.EINVAL, direct_only=True)
    options = settings_for(None)
    reader = Reader(
        pieces_of(read_header(path), options.piece),
        options,
        open_file=lambda file: OpenFile(file, preadv),
    )
    for _ in reader.loaded():
        pass
    assert reader.choice.mode is Mode.BUFFERED
    assert not reader.choice.measured


@pytest.mark.parametrize("wrong", [{"threads": 0}, {"buffers": 2}, {"block": 1000}, {"piece": 0}])
def test_settings_that_cannot_be(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"at least|multiple"):
        Settings(**wrong)


def test_progress_says_bytes_rate_and_time_left() -> None:
    now = [0.0]
    said: list[str] = []
    progress = Progress(2, 10_000_000_000, say=said.append, clock=lambda: now[0])
    progress.add(1_000_000_000)
    assert not said
    now[0] = 2.5
    progress.add(1_000_000_000)
    assert said == ["rank 2: 2.0 of 10.0 GB loaded, 0.80 GB/s, 10 s left"]
    now[0] = 10.0
    progress.add(8_000_000_000)
    progress.finish("O_DIRECT")
    assert said[1:] == ["rank 2: 10.00 GB loaded in 10.0 s, 1.00 GB/s (O_DIRECT)"]


def test_a_piece_knows_whether_it_is_a_part() -> None:
    tensor = stored("a", 0, 10)
    assert not Piece(Path("f"), 0, 10, (tensor,)).partial
    assert Piece(Path("f"), 0, 5, (tensor,)).partial
