import json
import os
import resource
import time

import pytest
import safetensors
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glmspark.models import CheckpointError
from glmspark.models.safetensors import DTYPE_BITS, MAX_HEADER, read_header


def file_bytes(header: object, data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def entry(begin: int, end: int, dtype: str = "U8", shape: list[int] | None = None) -> dict[str, object]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


GOOD = file_bytes({"a": entry(0, 4), "b": entry(4, 12, "F32", [2]), "__metadata__": {"x": "y"}}, bytes(12))


def test_a_whole_file(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(GOOD)
    found = read_header(path)
    assert list(found) == ["a", "b"]
    assert (found["b"].dtype, found["b"].shape, found["b"].nbytes, found["b"].elements) == ("F32", (2,), 8, 2)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "is empty (0 bytes)"),
        (b"abc", "is truncated or not safetensors"),
        (GOOD[:8], "is truncated or not safetensors"),
        (GOOD[:60], "is truncated or not safetensors"),
        (GOOD[:-1], "is truncated: 1 of 12 bytes of weights are missing"),
        (GOOD + b"x", "has 1 bytes after its last tensor"),
        (b"\xff" * 16, "is truncated or not safetensors"),
        (bytes(16), "is truncated or not safetensors"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
        (file_bytes(b"{" * 50), "it is not JSON"),
        (file_bytes(b"[" * 100_000), "it is not JSON"),
        (file_bytes(b"\xff\xff"), "it is not JSON"),
        (file_bytes(b'{"a":' + b"9" * 10_000 + b"}"), "it is not JSON"),
        (file_bytes([1]), "it is not a JSON object"),
        (file_bytes(b'{"a":1,"a":2}'), "'a' is given twice"),
        (file_bytes({"a": 1}), "'a' is not an object"),
        (file_bytes({"a": entry(0, 4, "F1")}, bytes(4)), "has the unknown type 'F1'"),
        (
            file_bytes({"a": {"dtype": ["F32"], "shape": [], "data_offsets": [0, 4]}}, bytes(4)),
            "unknown type",
        ),
        (file_bytes({"a": entry(0, 4, shape=[-4])}, bytes(4)), "has an impossible shape"),
        (file_bytes({"a": entry(0, 4, shape=[True])}, bytes(4)), "has an impossible shape"),
        (file_bytes({"a": entry(0, 4, shape=[2**60, 2**60])}, bytes(4)), "has an impossible shape"),
        (file_bytes({"a": entry(0, 1, shape=[1] * 40)}, bytes(1)), "has an impossible shape"),
        (
            file_bytes({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0]}}, bytes(4)),
            "impossible offsets",
        ),
        (file_bytes({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4.0]}}, bytes(4)), "offsets"),
        (file_bytes({"a": entry(0, 4, "F32", [2])}, bytes(4)), "has 4 bytes; F32 of shape [2] takes 8"),
        (file_bytes({"a": entry(0, 1, "F4", [3])}, bytes(1)), "F4 of shape [3] takes 1.5"),
        (file_bytes({"a": entry(0, 4), "b": entry(2, 6)}, bytes(6)), "overlapping tensors: 'a' and 'b'"),
        (file_bytes({"a": entry(0, 4), "b": entry(5, 6)}, bytes(6)), "a hole of 1 bytes before 'b'"),
        (file_bytes({"a": entry(1, 4)}, bytes(4)), "a hole of 1 bytes before 'a'"),
    ],
)
def test_each_fault_has_one_clear_sentence(tmp_path, raw, words):
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw)
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert words in caught.value.message
    assert caught.value.message.startswith(str(path))
    assert caught.value.next


def test_a_hostile_length_is_refused_before_anything_is_allocated(tmp_path):
    path = tmp_path / "m.safetensors"
    with path.open("wb") as file:
        file.write((MAX_HEADER + 1).to_bytes(8, "little"))
        file.truncate(2**40)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match="the format allows"):
        read_header(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


@pytest.mark.parametrize("filler", [b"[", b'{"a":', b'"', b" "])
def test_a_header_of_the_largest_size_ends_soon(tmp_path, filler):
    """Shown with a tenth of that size, in a tenth of the time."""
    path = tmp_path / "m.safetensors"
    size = MAX_HEADER // 10
    raw = (filler * (size // len(filler)))[:size]
    path.write_bytes(len(raw).to_bytes(8, "little") + raw)
    begun = time.monotonic()
    with pytest.raises(CheckpointError, match="not JSON"):
        read_header(path)
    assert time.monotonic() - begun < 2


def test_what_is_no_file(tmp_path):
    def failure(name: str) -> str:
        with pytest.raises(CheckpointError) as caught:
            read_header(tmp_path / name)
        return caught.value.message

    assert "does not exist" in failure("x.safetensors")
    (tmp_path / "dir.safetensors").mkdir()
    assert "is not a regular file" in failure("dir.safetensors")
    os.mkfifo(tmp_path / "pipe.safetensors")
    assert "is not a regular file" in failure("pipe.safetensors")
    (tmp_path / "link.safetensors").symlink_to("../../blobs/abc")
    assert "is a link to ../../blobs/abc, which does not exist" in failure("link.safetensors")
    (tmp_path / "loop.safetensors").symlink_to("loop.safetensors")
    failure("loop.safetensors")


entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(sorted(DTYPE_BITS)) | st.text(max_size=3),
        "shape": st.lists(st.integers(-1, 5), max_size=3),
        "data_offsets": st.lists(st.integers(-1, 20), min_size=2, max_size=2),
    }
)
headers = st.dictionaries(st.text(max_size=3), entries | st.integers(), max_size=4).map(json.dumps)


def library_accepts(raw: bytes) -> bool:
    try:
        safetensors.deserialize(raw)
    except safetensors.SafetensorError:
        return False
    return True


@settings(max_examples=300)
@given(headers.map(str.encode) | st.binary(max_size=60), st.binary(max_size=24))
@example(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', b"")
def test_what_is_accepted_the_format_s_own_reader_accepts(tmp_path_factory, header, data):
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    raw = file_bytes(header, data)
    path.write_bytes(raw)
    try:
        read_header(path)
    except CheckpointError:
        return
    assert library_accepts(raw)


@st.composite
def good_files(draw: st.DrawFn) -> bytes:
    header: dict[str, object] = {}
    position = 0
    for name in draw(st.lists(st.text(max_size=4), unique=True, max_size=5)):
        if name == "__metadata__":
            continue
        dtype = draw(st.sampled_from(["U8", "F32", "BF16", "F8_E4M3", "I64", "BOOL"]))
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        size = DTYPE_BITS[dtype] // 8
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    return file_bytes(header, bytes(position))


@given(good_files())
def test_what_the_format_s_own_reader_accepts_is_accepted(tmp_path_factory, raw):
    assert library_accepts(raw)
    path = tmp_path_factory.getbasetemp() / "good.safetensors"
    path.write_bytes(raw)
    found = read_header(path)
    assert {name: (info.dtype, list(info.shape)) for name, info in found.items()} == {
        name: (info["dtype"], info["shape"]) for name, info in safetensors.deserialize(raw)
    }


@given(st.data())
def test_any_damage_is_a_checkpoint_error_or_leaves_a_readable_header(tmp_path_factory, data):
    raw = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(raw)
    try:
        found = read_header(path)
    except CheckpointError:
        return
    assert sum(info.nbytes for info in found.values()) <= len(raw)
