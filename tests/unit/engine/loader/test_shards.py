"""Headers of a checkpoint's files."""

from __future__ import annotations

import json

import pytest

from glmspark.engine.shards import ShardError, read_header, read_shards, shard_files
from tests.unit.engine.loader.shards import write_shard


def test_tensors_lie_where_the_header_says(tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    contents = write_shard(path, {"x": ("BF16", [3, 5]), "none": ("F32", [0, 4]), "y": ("U8", [7])}, pad=3)
    raw = path.read_bytes()
    found = {tensor.name: tensor for tensor in read_header(path)}
    assert {name: raw[tensor.offset : tensor.end] for name, tensor in found.items()} == contents
    assert found["x"].shape == (3, 5)
    assert found["none"].nbytes == 0


def test_a_file_of_nothing_but_a_header(tmp_path) -> None:
    write_shard(tmp_path / "a.safetensors", {})
    assert read_header(tmp_path / "a.safetensors") == []


def test_the_index_says_which_files_count(tmp_path) -> None:
    for number in (2, 10, 1):
        write_shard(tmp_path / f"m-{number}.safetensors", {f"t{number}": ("U8", [1])})
    assert [path.name for path in shard_files(tmp_path)] == [f"m-{n}.safetensors" for n in (1, 2, 10)]
    index = {"weight_map": {"t1": "m-1.safetensors", "t10": "m-10.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert set(read_shards(tmp_path)) == {"t1", "t10"}


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"weight_map": {"a": "../x.safetensors"}}', '{"weight_map": {"a": 3}}']
)
def test_a_broken_index_is_refused(tmp_path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ShardError, match=r"index\.json"):
        shard_files(tmp_path)


def entry(**changes: object) -> bytes:
    text = json.dumps({"x": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4], **changes}}).encode()
    return len(text).to_bytes(8, "little") + text + b"abcd"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "is no safetensors file: 0 bytes"),
        (b"\xff" * 20, "is no safetensors file"),
        ((9).to_bytes(8, "little") + b"{" * 9, "is not JSON"),
        ((2).to_bytes(8, "little") + b"[]", "is not a JSON object"),
        (entry(dtype="F3"), "tensor 'x' is"),
        (entry(shape=[5]), "has 4 bytes, U8 of shape [5] takes 5"),
        (entry(data_offsets=[-4, 0]), "tensor 'x'"),
        (entry(data_offsets=None), "tensor 'x' is"),
        (entry()[:-1], "is truncated"),
    ],
)
def test_what_is_no_whole_file_is_refused_by_name(tmp_path, raw: bytes, said: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(raw)
    with pytest.raises(ShardError) as error:
        read_header(path)
    assert str(path) in str(error.value)
    assert said in str(error.value)


def test_a_file_that_is_not_there(tmp_path) -> None:
    with pytest.raises(ShardError, match="cannot be read: No such file"):
        read_header(tmp_path / "a.safetensors")
