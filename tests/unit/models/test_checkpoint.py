import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.models import CheckpointError, inspect_checkpoint
from tests.unit.models.toys import (
    architecture,
    read_index,
    tensors,
    toy,
    without,
    write_checkpoint,
    write_index,
    write_shard,
)


def failure(directory) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        inspect_checkpoint(directory)
    assert caught.value.next
    return caught.value


def refusal(directory) -> str | None:
    try:
        inspect_checkpoint(directory)
    except CheckpointError as error:
        return error.message
    return None


@pytest.mark.parametrize("shards", [1, 3])
def test_a_whole_checkpoint(tmp_path, shards):
    found = inspect_checkpoint(write_checkpoint(tmp_path, shards=shards))
    assert len(found.shards) == shards
    assert found.parameters == sum(architecture().parameters.values())
    assert found.nbytes == 2 * found.parameters + 2 * sum(3 * [4]) + 2 * 4  # the router's biases are float32
    assert found.has_mtp
    assert found.has_indexer
    assert all(tensor.spec is not None for tensor in found.tensors)
    assert {tensor.spec.kind for tensor in found.layer_tensors(0)} == {
        "norm",
        "attention",
        "indexer",
        "dense_mlp",
    }
    assert len(list(found.layer_tensors(3))) == 2 + 7 + 2 + 3 * 4 + 3


def test_links_into_another_directory_are_followed(tmp_path):
    blobs = write_checkpoint(tmp_path / "blobs", shards=2)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(path)
    assert inspect_checkpoint(snapshot).has_mtp
    shard = next(blobs.glob("*.safetensors"))
    shard.unlink()
    error = failure(snapshot)
    assert "is a link to" in error.message
    assert "rsync -L" in error.next


def test_parts_that_may_be_left_out(tmp_path):
    pruned = inspect_checkpoint(write_checkpoint(tmp_path / "a", contents=without(tensors(), [".layers.4."])))
    assert not pruned.has_mtp
    dense = inspect_checkpoint(write_checkpoint(tmp_path / "b", contents=without(tensors(), ["indexer"])))
    assert not dense.has_indexer
    assert dense.has_mtp
    some = inspect_checkpoint(
        write_checkpoint(tmp_path / "c", contents=without(tensors(), ["2.self_attn.indexer"]))
    )
    assert not some.has_indexer


def test_quantized_parts_belong_to_their_weight(tmp_path):
    config = toy(quantization_config={"quant_method": "compressed-tensors"})
    contents = {}
    for name, (dtype, shape) in tensors(config).items():
        if ".experts." in name:
            base = name.removesuffix("weight")
            contents[base + "weight_packed"] = ("U8", [shape[0], shape[1] // 2])
            contents[base + "weight_scale"] = ("U8", [shape[0], 1])
            contents[base + "weight_global_scale"] = ("F32", [1])
        else:
            contents[name] = (dtype, shape)
    found = inspect_checkpoint(write_checkpoint(tmp_path, config, contents))
    packed = [tensor for tensor in found.tensors if "packed" in tensor.name or "scale" in tensor.name]
    assert len(packed) == 3 * 3 * 4 * 4
    assert {tensor.spec.kind for tensor in packed} == {"routed_experts"}


def test_experts_of_a_layer_in_one_tensor(tmp_path):
    contents = without(tensors(), [".experts."])
    for layer in (1, 2, 3, 4):
        contents[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = ("BF16", [4, 32, 32])
        contents[f"model.layers.{layer}.mlp.experts.down_proj"] = ("BF16", [4, 32, 16])
    found = inspect_checkpoint(write_checkpoint(tmp_path / "a", contents=contents))
    assert found.parameters == sum(architecture().parameters.values())
    contents["model.layers.2.mlp.experts.down_proj"] = ("BF16", [3, 32, 16])
    assert "layer 2 has 3 experts" in failure(write_checkpoint(tmp_path / "b", contents=contents)).message


def test_pruned_experts_may_keep_their_numbers_and_the_router_its_rows(tmp_path):
    contents = without(tensors(), [".experts.1.", ".experts.2."])
    found = inspect_checkpoint(write_checkpoint(tmp_path / "a", toy(n_routed_experts=2), contents))
    assert found.architecture.experts == 2
    assert (
        "has 2 experts, config.json says 3"
        in failure(write_checkpoint(tmp_path / "b", toy(n_routed_experts=3), contents)).message
    )


def test_a_copy_of_the_embedding_in_the_mtp_layer_is_of_no_weight(tmp_path):
    contents = tensors() | {"model.layers.4.embed_tokens.weight": ("BF16", [100, 32])}
    (extra,) = [
        t for t in inspect_checkpoint(write_checkpoint(tmp_path, contents=contents)).tensors if not t.spec
    ]
    assert extra.name == "model.layers.4.embed_tokens.weight"


def test_directories_that_are_none(tmp_path):
    assert "does not exist" in failure(tmp_path / "x").message
    (tmp_path / "file").write_text("")
    assert "is not a directory" in failure(tmp_path / "file").message
    (tmp_path / "link").symlink_to("nowhere")
    assert "is not a directory" in failure(tmp_path / "link").message
    failure("a\0b")
    assert "config.json does not exist" in failure(tmp_path).message


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "is empty"),
        (b"{", "is not JSON"),
        (b"\xff\xfe\xfd", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b"9" * 10_000, "is not JSON"),
        (b"{}", "there is no model_type"),
    ],
)
def test_broken_config(tmp_path, raw, words):
    directory = write_checkpoint(tmp_path)
    (directory / "config.json").write_bytes(raw)
    assert words in failure(directory).message


def test_config_that_is_no_file(tmp_path):
    (tmp_path / "config.json").mkdir()
    assert "is not a regular file" in failure(tmp_path).message
    (tmp_path / "config.json").rmdir()
    (tmp_path / "config.json").symlink_to("blob")
    assert "is a link to blob" in failure(tmp_path).message
    (tmp_path / "config.json").unlink()
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(2**40)
    assert "is larger than" in failure(tmp_path).message


def test_no_weights(tmp_path):
    directory = write_checkpoint(tmp_path)
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    error = failure(directory)
    assert "holds no *.safetensors file" in error.message
    assert "pytorch_model.bin" in error.seen


@pytest.mark.parametrize(
    "shard",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/b.safetensors",
        ".hidden.safetensors",
        "x.bin",
        "",
        "-x\n.safetensors",
    ],
)
def test_an_index_that_leaves_the_directory(tmp_path, shard):
    directory = write_checkpoint(tmp_path, shards=2)
    index = read_index(directory)
    write_index(directory, index | {next(iter(index)): shard})
    assert "is not a plain file name" in failure(directory).message


def test_an_index_that_points_nowhere(tmp_path):
    directory = write_checkpoint(tmp_path / "a", shards=2)
    write_index(directory, read_index(directory) | {"more": "model-00003-of-00003.safetensors"})
    assert (
        "names the shard model-00003-of-00003.safetensors, which does not exist" in failure(directory).message
    )
    directory = write_checkpoint(tmp_path / "b", shards=2)
    write_index(directory, read_index(directory) | {"more": "model-00001-of-00002.safetensors"})
    error = failure(directory)
    assert "holds 'more', which it does not" in error.message
    assert error.seen.startswith("1 of ")
    for raw in ("{}", '{"weight_map": []}', '{"weight_map": {}}'):
        (directory / "model.safetensors.index.json").write_text(raw)
        assert "has no weight_map" in failure(directory).message
    (directory / "model.safetensors.index.json").write_text('{"weight_map": {"a": 1}}')
    assert "plain file name" in failure(directory).message


def test_a_tensor_twice(tmp_path):
    directory = write_checkpoint(tmp_path, shards=2)
    (directory / "model.safetensors.index.json").rename(directory / "kept")
    inspect_checkpoint(directory)
    first = directory / "model-00001-of-00002.safetensors"
    shutil.copy(first, directory / "model-copy.safetensors")
    assert "is both in" in failure(directory).message
    (directory / "kept").rename(directory / "model.safetensors.index.json")
    inspect_checkpoint(directory)  # the index says which one counts


def test_missing_and_misshapen_weights(tmp_path):
    contents = without(tensors(), ["layers.2.self_attn.o_proj"])
    error = failure(write_checkpoint(tmp_path / "a", contents=contents))
    assert "model.layers.2.self_attn.o_proj.weight" in error.message
    contents = without(tensors(), ["layers.4.eh_proj"])
    assert "layers.4.eh_proj" in failure(write_checkpoint(tmp_path / "b", contents=contents)).message
    contents = without(tensors(), ["layers.3.mlp.experts.2."])
    error = failure(write_checkpoint(tmp_path / "c", contents=contents))
    assert "layer 3 has 3 experts, config.json says 4" in error.message
    contents = tensors() | {"model.norm.weight": ("BF16", [31])}
    error = failure(write_checkpoint(tmp_path / "d", contents=contents))
    assert "model.norm.weight has shape [31], config.json implies [32]" in error.message


@given(st.data())
def test_any_damage_to_an_index_or_config_is_a_checkpoint_error(tmp_path_factory, data):
    directory = write_checkpoint(tmp_path_factory.mktemp("c"), shards=2)
    path = directory / data.draw(st.sampled_from(["config.json", "model.safetensors.index.json"]))
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at : at + data.draw(st.integers(1, 5))] = data.draw(st.binary(max_size=4))
    path.write_bytes(raw)
    refused = refusal(directory)
    assert refused is None or str(directory) in refused
    shutil.rmtree(directory)


def test_shapes_follow_the_config(tmp_path):
    directory = write_checkpoint(tmp_path)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"vocab_size": 101}))
    assert "lm_head.weight has shape [100, 32], config.json implies [101, 32]" in failure(directory).message
    write_shard(directory / "model.safetensors", tensors(toy(vocab_size=101)))
    inspect_checkpoint(directory)
