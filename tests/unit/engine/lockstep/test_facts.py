"""What ranks compare before they load: the same for the same, and telling where it is not."""

from __future__ import annotations

import dataclasses
import enum
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import glmspark
from glmspark.engine.lockstep import facts
from glmspark.engine.lockstep.cores import own_cores
from glmspark.engine.lockstep.meeting import differences
from glmspark.engine.patches.pruned_experts import has_mtp, kept_on_disk
from glmspark.engine.shards import part_of
from glmspark.models.files import LocalFiles
from glmspark.models.inspection import inspect
from glmspark.weights.parts import Layout, node_parts

TINY = Path(glmspark.__file__).parent / "recipes" / "checkpoints" / "glm-tiny"


class Mode(enum.Enum):
    NONE = 0


class Opaque:
    """Its repr holds an address."""


@dataclasses.dataclass
class Inner:
    dtype: Any = float
    sizes: tuple[int, ...] = (1, 2)
    names: Any = dataclasses.field(default_factory=lambda: {"b", "a"})


@dataclasses.dataclass
class Outer:
    model_config: Inner
    instance_id: str = "x1"
    compilation_config: Any = dataclasses.field(
        default_factory=lambda: {"mode": Mode.NONE, "cache_dir": "/a"}
    )
    other: Any = None


def test_a_configuration_becomes_short_texts() -> None:
    found = dict(facts.flatten("", Outer(Inner(), other=[Opaque(), {"k": 1.5}])))
    assert found == {
        "model_config.dtype": "builtins.float",
        "model_config.sizes": "[1, 2]",
        "model_config.names": "['a', 'b']",
        "instance_id": "'x1'",
        "compilation_config[cache_dir]": "'/a'",
        "compilation_config[mode]": "NONE",
        "other": f"[a {__name__}.Opaque, 1.5]",
    }


def test_what_is_a_ranks_own_is_left_out() -> None:
    one = facts.configuration(Outer(Inner()))
    other = facts.configuration(Outer(Inner(), instance_id="x2"))
    assert one == other
    assert "instance_id" not in one
    assert facts.configuration(Outer(Inner(sizes=(1,)))) != one


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "copy"))


def test_copies_of_a_checkpoint_are_alike(copy: Path) -> None:
    assert facts.checkpoint(copy) == facts.checkpoint(TINY)
    assert {"checkpoint.config.json"} < set(facts.checkpoint(TINY))


def test_another_configuration_shows(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["routed_scaling_factor"] = 1.0
    (copy / "config.json").write_text(json.dumps(config))
    told = differences(facts.checkpoint(TINY), facts.checkpoint(copy), "rank 1")
    assert told is not None
    assert told.startswith("rank 1 differs from rank 0 in checkpoint:\n  checkpoint.config.json: ")


def test_another_header_and_a_missing_file_show(copy: Path) -> None:
    weights = min(copy.glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    place = data.index(b'"dtype"')
    data[place + 1 : place + 6] = b"DTYPE"
    weights.write_bytes(data)
    assert (
        facts.checkpoint(copy)[f"checkpoint.{weights.name}"]
        != facts.checkpoint(TINY)[f"checkpoint.{weights.name}"]
    )
    weights.unlink()
    assert "absent there" in str(differences(facts.checkpoint(TINY), facts.checkpoint(copy), "rank 1"))


def test_no_secret_is_shown() -> None:
    assert facts._shown("VLLM_SOME_TOKEN", "hf_abc").startswith("digest ")
    assert facts._shown("VLLM_USE_V1", "1") == "1"
    one, other = (facts._shown("S3_SECRET", value) for value in ("a", "b"))
    assert one != other


def test_a_token_in_the_configuration_is_told_to_nobody() -> None:
    @dataclasses.dataclass
    class Model:
        hf_token: str = "hf_hidden"
        tokenizer_mode: str = "auto"

    @dataclasses.dataclass
    class Config:
        model_config: Model
        speculative_config: Any

    found = facts.configuration(Config(Model(), {"draft": Model()}))
    assert "hf_hidden" not in str(found)
    assert found["model_config.tokenizer_mode"] == "'auto'"


def test_our_own_code_is_among_the_facts(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    before = facts._code_digest(tmp_path)
    (tmp_path / "a.py").write_text("x = 2\n")
    assert facts._code_digest(tmp_path) != before


@pytest.mark.parametrize(
    ("environ", "local_rank", "expected"),
    [
        ({}, 0, "0,1,2,3"),
        ({"VLLM_CPU_OMP_THREADS_BIND": "2-3"}, 0, "2-3"),
        ({"VLLM_CPU_OMP_THREADS_BIND": "2-3"}, 1, "2-3"),
        ({"VLLM_CPU_OMP_THREADS_BIND": "0-1|2-3"}, 1, "2-3"),
        ({"VLLM_CPU_OMP_THREADS_BIND": "nobind"}, 1, "nobind"),
        ({"VLLM_CPU_OMP_THREADS_BIND": "auto", "LOCAL_WORLD_SIZE": "2"}, 1, "2,3"),
        ({"LOCAL_WORLD_SIZE": "3"}, 0, "0,1"),
        ({"LOCAL_WORLD_SIZE": "3"}, 2, "3"),
        ({"LOCAL_WORLD_SIZE": "8"}, 5, "1"),
    ],
)
def test_ranks_of_a_machine_share_its_cores(environ: dict[str, str], local_rank: int, expected: str) -> None:
    assert own_cores(environ, local_rank, [0, 1, 2, 3]) == expected


def test_parts_of_one_checkpoint_are_the_same_and_as_good_as_all_of_it(tmp_path: Path) -> None:
    """Each rank's node may hold what that rank needs; the index says of what that is a part."""
    found = inspect(LocalFiles(TINY))
    wanted = node_parts(found, Layout(("n1", "n2"), 2, 1, ep=True), "path:/model")
    told = []
    for node, one in wanted.items():
        place = tmp_path / node
        place.mkdir()
        for name in ("config.json", "generation_config.json"):
            shutil.copy(TINY / name, place)
        (place / "model.safetensors.index.json").write_text(one.index)
        (place / "model.safetensors").write_bytes(b"this node's tensors")
        told.append(facts.checkpoint(place))
        assert getattr(part_of(place), "experts", False)
        assert kept_on_disk(str(place), found.architecture.experts) is None
    assert told[0] == told[1] == facts.checkpoint(TINY)
    part = part_of(tmp_path / "n1")
    assert part is not None
    assert not has_mtp(str(tmp_path / "n1"), 4)  # this layout drafts with nothing
    assert part_of(TINY) is None
    assert has_mtp(str(TINY), 4)
