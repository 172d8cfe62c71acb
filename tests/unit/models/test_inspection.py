"""Every problem that inspect knows, seeded one by one into a checkpoint it finds nothing wrong with."""

import json
import os
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from glmspark.models.errors import CheckpointError
from glmspark.models.files import LocalFiles
from glmspark.models.inspection import Inspection, Severity, inspect
from glmspark.models.safetensors import DTYPE_BITS
from tests.unit.models.toys import TOY, architecture
from tools.headers import experts_nvfp4

GLM_TOKENS = ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
INDEX = "model.safetensors.index.json"
MODELOPT = {
    "quant_method": "modelopt",
    "quant_algo": "W4A16_NVFP4",
    "ignore": ["lm_head", "*embed_tokens", "*self_attn*", "*shared_experts*", "*mlp.gate", "*eh_proj"]
    + [f"model.layers.0.mlp.{part}_proj" for part in ("gate", "up", "down")],
}


@dataclass
class Seed:
    """A checkpoint to be written: change what should be wrong, then write it."""

    config: dict[str, Any]
    tensors: dict[str, tuple[str, tuple[int, ...]]]
    shards: int = 2
    values: dict[str, float] = field(default_factory=dict)
    index: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def drop(self, word: str) -> None:
        self.tensors = {name: tensor for name, tensor in self.tensors.items() if word not in name}

    def write(self, directory: Path) -> Path:
        directory.mkdir()
        weight_map = {}
        names = list(self.tensors)
        for number in range(self.shards):
            shard = f"model-{number + 1:05}-of-{self.shards:05}.safetensors"
            part = names[number :: self.shards]
            self.write_shard(directory / shard, part)
            weight_map |= dict.fromkeys(part, shard)
        (directory / INDEX).write_text(json.dumps({"weight_map": weight_map | self.index}))
        (directory / "config.json").write_text(json.dumps(self.config))
        for name, text in self.files.items():
            (directory / name).write_text(text)
        return directory

    def write_shard(self, path: Path, names: list[str]) -> None:
        header, data = {}, b""
        for name in names:
            dtype, shape = self.tensors[name]
            size = DTYPE_BITS[dtype] // 8
            for dimension in shape:
                size *= dimension
            scale = size == 4 and dtype == "F32"
            header[name] = {
                "dtype": dtype,
                "shape": list(shape),
                "data_offsets": [len(data), len(data) + size],
            }
            data += struct.pack("<f", self.values.get(name, 0.25)) if scale else bytes(size)
        raw = json.dumps(header).encode()
        path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)


def seed(quantized: bool = False, **config: Any) -> Seed:
    config = {**TOY, **config}
    tensors = {}
    for spec in architecture(config).specs:
        for expert in range(spec.experts):
            if quantized and not (spec.layer and spec.layer.mtp):
                parts = experts_nvfp4(spec)
            else:
                parts = {spec.name.rpartition(".")[2]: ("BF16", spec.shape)}
            module = spec.name.replace("{expert}", str(expert)).rpartition(".")[0]
            tensors |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
    if quantized:
        config["quantization_config"] = {**MODELOPT, "ignore": [*MODELOPT["ignore"], "model.layers.4*"]}
    tokens = [{"id": 90 + n, "content": token} for n, token in enumerate(GLM_TOKENS)]
    files = {
        "tokenizer.json": json.dumps({"model": {"vocab": {"a": 0}}, "added_tokens": tokens}),
        "chat_template.jinja": "[gMASK]<sop><|user|>{{ messages }}<|assistant|>",
    }
    return Seed(config, tensors, files=files)


def look(path: Path) -> Inspection:
    return inspect(LocalFiles(path))


def rules(found: Inspection) -> dict[str, Severity]:
    for problem in found.problems:
        assert problem.seen
        assert problem.effect
        assert problem.remedy
    return {problem.rule: problem.severity for problem in found.problems}


@pytest.mark.parametrize("quantized", [False, True])
def test_nothing_is_wrong_with_a_whole_checkpoint(tmp_path, quantized):
    found = look(seed(quantized).write(tmp_path / "m"))
    assert rules(found) == {}
    assert found.parameters == sum(architecture().parameters.values())
    assert found.mtp_stored


SEEDS: dict[str, Callable[[Seed], None]] = {}
QUANTIZED: dict[str, Callable[[Seed], None]] = {}
AFTERWARDS: dict[str, Callable[[Path], None]] = {}


def first(path: Path) -> Path:
    return path / "model-00001-of-00002.safetensors"


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a shard's header, as a corrupt or hostile file has it."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data[8 + length :])


def overlap(header: dict[str, Any]) -> None:
    of_a_size: dict[int, dict[str, Any]] = {}
    for one in header.values():
        size = one["data_offsets"][1] - one["data_offsets"][0]
        if size in of_a_size:
            one["data_offsets"] = of_a_size[size]["data_offsets"]
            return
        of_a_size[size] = one


SEEDS["missing-tensors"] = lambda s: s.drop("layers.1.self_attn.o_proj")
SEEDS["extra-tensors"] = lambda s: s.tensors.update(
    {"model.layers.0.self_attn.gate.weight": ("BF16", (4, 4))}
)
SEEDS["mtp-absent"] = lambda s: s.drop("layers.4.")
SEEDS["mtp-half"] = lambda s: s.drop("layers.4.eh_proj")
SEEDS["mtp-undeclared"] = lambda s: s.config.update(num_nextn_predict_layers=0)
SEEDS["expert-count"] = lambda s: s.drop("layers.2.mlp.experts.3")
SEEDS["experts-incomplete"] = lambda s: s.drop("layers.2.mlp.experts.3.up_proj")
SEEDS["shape"] = lambda s: s.tensors.update({"lm_head.weight": ("BF16", (90, 32))})
SEEDS["indexer-pattern"] = lambda s: s.config.update(index_topk_pattern=None)
SEEDS["indexer-absent"] = lambda s: s.drop(".indexer.")
SEEDS["tokenizer-missing"] = lambda s: s.files.pop("tokenizer.json") and None
SEEDS["tokenizer-broken"] = lambda s: s.files.update({"tokenizer.json": '{"model": {}}'})
SEEDS["tokenizer-family"] = lambda s: s.files.update(
    {"tokenizer.json": '{"model": {}, "added_tokens": [{"id": 7, "content": "<|im_start|>"}]}'}
)
SEEDS["tokenizer-vocabulary"] = lambda s: s.files.update(
    {"tokenizer.json": s.files["tokenizer.json"].replace('"id": 90', '"id": 100')}
)
SEEDS["chat-template-missing"] = lambda s: s.files.pop("chat_template.jinja") and None
SEEDS["chat-template-family"] = lambda s: s.files.update({"chat_template.jinja": "<|im_start|>user"})
SEEDS["index-missing-shard"] = lambda s: s.index.update(
    {"lm_head.weight": "model-00003-of-00003.safetensors"}
)
SEEDS["index-foreign"] = lambda s: s.index.update({"lm_head.weight": "../other.safetensors"})
SEEDS["index-nowhere"] = lambda s: s.index.update(
    {"model.layers.0.nothing": "model-00001-of-00002.safetensors"}
)
SEEDS["quantization-config"] = lambda s: s.config.update(
    quantization_config={"quant_method": "fp8", "ignore": 7}
)
SEEDS["targets-unquantized"] = lambda s: s.config.update(quantization_config=MODELOPT)

QUANTIZED["quantization-undeclared"] = lambda s: s.config.pop("quantization_config") and None
QUANTIZED["w4a4-without-input-scale"] = lambda s: s.config["quantization_config"].update(quant_algo="NVFP4")
QUANTIZED["joined-scales-differ"] = lambda s: s.values.update(
    {"model.layers.2.mlp.experts.1.up_proj.weight_scale_2": 0.5}
)
QUANTIZED["scale-impossible"] = lambda s: s.values.update(
    {"model.layers.2.mlp.experts.1.down_proj.weight_scale_2": float("nan")}
)
QUANTIZED["missing-scales"] = lambda s: s.drop("layers.1.mlp.experts.0.up_proj.weight_scale_2")
QUANTIZED["excludes-quantized"] = lambda s: s.config["quantization_config"]["ignore"].append(
    "*layers.2.mlp.experts*"
)
QUANTIZED["quantization-files-differ"] = lambda s: s.files.update(
    {"hf_quant_config.json": '{"quantization": {"quant_algo": "NVFP4"}}'}
)


def quantize_routers(s: Seed) -> None:
    """All of the trunk's routers in NVFP4, as the config says."""
    s.config["quantization_config"]["ignore"].remove("*mlp.gate")
    for name in [one for one in s.tensors if one.endswith(".mlp.gate.weight") and "layers.4." not in one]:
        rows, inputs = s.tensors[name][1]
        s.tensors |= {
            name: ("U8", (rows, inputs // 2)),
            f"{name}_scale": ("F8_E4M3", (rows, inputs // 16)),
            f"{name}_scale_2": ("F32", ()),
        }


QUANTIZED["quantizes-what-it-should-not"] = quantize_routers
SEEDS["reap-plan"] = lambda s: s.files.update({"reap-prune-plan-full.json": '{"1": {"kept": "all"}}'})


def leave_out_of_the_index(path: Path) -> None:
    index = json.loads((path / INDEX).read_text())
    del index["weight_map"]["lm_head.weight"]
    (path / INDEX).write_text(json.dumps(index))


AFTERWARDS["index-incomplete"] = leave_out_of_the_index
AFTERWARDS["no-shards"] = lambda path: [one.unlink() for one in (*path.glob("*.safetensors"), path / INDEX)]
AFTERWARDS["shard-truncated"] = lambda path: os.truncate(first(path), first(path).stat().st_size - 8)
AFTERWARDS["shard-overlap"] = lambda path: rewrite(first(path), overlap)
AFTERWARDS["shard-layout"] = lambda path: first(path).write_bytes(first(path).read_bytes() + bytes(8))
AFTERWARDS["shard-broken"] = lambda path: first(path).write_bytes(
    b"version https://git-lfs.github.com/spec/v1\n"
)
AFTERWARDS["dangling-link"] = lambda path: (
    first(path).unlink() or first(path).symlink_to("../../blobs/4f53cda18c2baa0c")
)
AFTERWARDS["index-broken"] = lambda path: (path / INDEX).write_text("{") and None
AFTERWARDS["stray-shard"] = lambda path: (
    (path / "z.safetensors").write_bytes(first(path).read_bytes()) and None
)
AFTERWARDS["duplicate-tensor"] = lambda path: (
    (path / INDEX).unlink() or ((path / "z.safetensors").write_bytes(first(path).read_bytes()) and None)
)
BESIDES = {
    "mtp-undeclared": {"extra-tensors"},
}
WARNINGS = {
    "extra-tensors",
    "mtp-absent",
    "mtp-undeclared",
    "indexer-absent",
    "stray-shard",
    "quantization-files-differ",
    "quantizes-what-it-should-not",
    "reap-plan",
    "index-incomplete",
}


@pytest.mark.parametrize(
    ("rule", "quantized", "change"),
    [(rule, False, change) for rule, change in SEEDS.items()]
    + [(rule, True, change) for rule, change in QUANTIZED.items()],
)
def test_each_problem_is_found_and_no_other(tmp_path, rule, quantized, change):
    made = seed(quantized)
    change(made)
    found = rules(look(made.write(tmp_path / "m")))
    assert rule in found
    assert set(found) <= {rule} | BESIDES.get(rule, set())
    assert found[rule] is (Severity.WARNING if rule in WARNINGS else Severity.ERROR)


@pytest.mark.parametrize("rule", AFTERWARDS)
def test_each_damage_is_found_and_no_other(tmp_path, rule):
    path = seed().write(tmp_path / "m")
    AFTERWARDS[rule](path)
    found = rules(look(path))
    assert set(found) == {rule}
    assert found[rule] is (Severity.WARNING if rule in WARNINGS else Severity.ERROR)


def test_a_pattern_of_null_that_can_be_derived_is_a_warning(tmp_path):
    made = seed(index_topk_pattern=None, index_topk_freq=2, index_skip_topk_offset=1)
    (problem,) = look(made.write(tmp_path / "m")).problems
    assert (problem.rule, problem.severity) == ("indexer-pattern-null", Severity.WARNING)
    assert problem.remedy.endswith("FSFS")


def test_indexers_on_layers_that_share_are_unused(tmp_path):
    made = seed()
    for name, tensor in list(made.tensors.items()):
        if "layers.0.self_attn.indexer." in name:
            made.tensors[name.replace("layers.0.", "layers.1.")] = tensor
    found = look(made.write(tmp_path / "m"))
    assert rules(found) == {"unused-indexers": Severity.NOTE}
    assert found.parameters == sum(architecture().parameters.values())


@pytest.mark.parametrize(
    ("numbers", "rows", "plan", "expected"),
    [
        ((0, 2, 5, 7), 4, True, {"experts-numbered-as-before-pruning"}),
        ((0, 2, 5, 7), 8, False, {"experts-numbered-as-before-pruning"}),
        ((0, 1, 2, 3), 4, False, set()),
        ((0, 1, 2, 3), 8, False, {"router-rows"}),
        ((0, 1, 2, 3), 8, True, set()),
    ],
)
def test_pruned_experts(tmp_path, numbers, rows, plan, expected):
    made = seed()
    renamed = {}
    for name, (dtype, shape) in made.tensors.items():
        if "layers.4." in name:
            continue
        number = re.search(r"\.experts\.(\d)\.", name)
        new = name.replace(number[0], f".experts.{numbers[int(number[1])]}.") if number else name
        renamed[new] = (dtype, (rows, *shape[1:]) if ".mlp.gate." in name else shape)
    made.tensors = renamed
    if plan:
        kept = {str(layer): {"kept": list(numbers)} for layer in (1, 2, 3)}
        made.files["reap-prune-plan-full.json"] = json.dumps(kept)
    found = look(made.write(tmp_path / "m"))
    assert set(rules(found)) == expected | {"mtp-absent"}
    assert (found.kept is not None) is plan


def test_without_a_config_there_is_one_clear_error(tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        look(tmp_path)
    with pytest.raises(CheckpointError, match="cannot look into"):
        look(tmp_path / "nowhere")


def test_a_regular_expression_that_never_ends_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("glmspark.models.inspection.patterns._LIMIT_S", 0.2)
    made = seed()
    evil = r"re:((\w|\.)*)*!"
    made.config["quantization_config"] = {"quant_method": "compressed-tensors", "ignore": [evil]}
    found = look(made.write(tmp_path / "m"))
    assert "quantization-config" in rules(found)
    assert "is not done after" in found.problems[0].seen
