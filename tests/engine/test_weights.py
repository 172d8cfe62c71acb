"""Pruned checkpoints, a rank's share and the loader, in vLLM: the same answers, and only the bytes needed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from glmspark.engine.loader.files import Mode
from glmspark.engine.loader.spark import SparkLoader, read_tensors, settings_of, size_of
from glmspark.engine.patch import PatchRefusedError
from glmspark.engine.patches import pruned_experts, spark_loader
from glmspark.engine.patches.rank_loading import not_on_this_rank
from glmspark.engine.shards import read_header, read_shards
from tests.engine.ranks import Layout, Ranks
from tests.engine.reference import Reference
from tests.engine.test_context import configure
from tests.engine.test_without_patches import engine
from tools.glm_tiny.prompts import FIXED_PROMPTS, FREE_PROMPTS
from tools.glm_tiny.variants import make
from tools.glm_tiny.variants.checkpoint import read, write
from tools.glm_tiny.variants.dense import derive as derive_dense

REAP = ("glm-tiny-reap", "glm-tiny-reap-whole-router", "glm-tiny-reap-renumbered")
CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def variant(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A variant of glm-tiny, made when first asked for."""
    root = tmp_path_factory.mktemp("variants-of-weights")

    def folder(name: str) -> Path:
        if not (root / name).is_dir():
            make(name, checkpoint, root / name)
        return root / name

    return folder


@pytest.fixture(scope="session")
def sharded(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """glm-tiny with a file a layer and an index, as large checkpoints come."""
    target = tmp_path_factory.mktemp("sharded") / "glm-tiny"
    write(read(checkpoint), target, per_layer=True)
    return target


def tokens(done: Any) -> tuple[list[int], list[int]]:
    assert done.returncode == 0, done.stderr[-3000:]
    prompt, output = ([int(word) for word in line.split()] for line in done.stdout.strip().splitlines()[-2:])
    return prompt, output


# --- pruned experts -----------------------------------------------------------------------------------------


def test_original_numbers_under_a_whole_router_answer_as_transformers(variant, tmp_path) -> None:
    """At TP2. The other two published forms are served below: renumbered at PP3, cut routers at TP1."""
    reference = Reference(variant("glm-tiny-reap"))
    asked = prompts_of(reference, 10)
    flags = {"load-format": "spark"}
    with Ranks(variant("glm-tiny-reap-whole-router"), Layout(2, 1), tmp_path, flags) as ranks:
        answers = ranks.complete(asked)
    check(reference, asked, answers)


def test_the_mix_answers_as_transformers(variant, tmp_path) -> None:
    """Dequantised: vLLM has no CPU kernels for its int8 weights. What is served is what they stand for."""
    dense = tmp_path / "dense"
    write(derive_dense(variant("glm-tiny-int4-int8mix")), dense, per_layer=True)
    reference = Reference(dense)
    asked = prompts_of(reference, 20)
    with Ranks(dense, Layout(1, 1), tmp_path, {"load-format": "spark"}) as ranks:
        answers = ranks.complete(asked)
    check(reference, asked, answers)


def prompts_of(reference: Reference, free: int) -> list[tuple[list[int], int]]:
    """The fixed prompts and so many of the free ones: token ids and the most tokens to answer."""
    chosen = (*FIXED_PROMPTS, *FREE_PROMPTS[:free])
    return [(reference.prompt_ids(prompt), prompt.max_tokens) for prompt in chosen]


def check(reference: Reference, asked: list[tuple[list[int], int]], answers: list[list[int]]) -> None:
    """Fixed prompts (the first 20) token for token; the others differ at ties only."""
    for number, ((ids, _), out) in enumerate(zip(asked, answers, strict=True)):
        places = reference.disagreements(ids, out)
        assert all(place.regret <= (0 if number < len(FIXED_PROMPTS) else 0.02) for place in places), places


def test_without_the_patch_original_numbers_do_not_load(variant) -> None:
    done = engine(variant("glm-tiny-reap"), "--without", "pruned-experts")
    assert done.returncode != 0
    assert re.search(r"KeyError: '.*mlp\.experts\.[5-7]\.", done.stdout + done.stderr)


def config(directory: Path, **changes: Any) -> SimpleNamespace:
    """As much of a VllmConfig as the rule looks at."""
    said = json.loads((directory / "config.json").read_text())
    hf = SimpleNamespace(
        n_routed_experts=said["n_routed_experts"], num_hidden_layers=said["num_hidden_layers"]
    )
    model = SimpleNamespace(model=str(directory), revision=None, hf_config=hf)
    parallel = SimpleNamespace(enable_ep_weight_filter=False)
    return SimpleNamespace(
        **{"model_config": model, "parallel_config": parallel, "speculative_config": None, **changes}
    )


@pytest.mark.parametrize("name", REAP)
def test_the_ep_filter_goes_where_numbers_on_disk_are_original(name: str, variant) -> None:
    settings = config(variant(name), parallel_config=SimpleNamespace(enable_ep_weight_filter=True))
    pruned_experts.check_checkpoint(settings)
    assert settings.parallel_config.enable_ep_weight_filter is (name == "glm-tiny-reap-renumbered")


def test_an_absent_mtp_layer_is_refused_before_anything_loads(variant, checkpoint: Path) -> None:
    def drafting(directory: Path, method: str) -> SimpleNamespace:
        drafter = SimpleNamespace(model=str(directory), revision=None)
        return config(
            directory, speculative_config=SimpleNamespace(method=method, draft_model_config=drafter)
        )

    with pytest.raises(PatchRefusedError, match="of which the checkpoint has no weights"):
        pruned_experts.check_checkpoint(drafting(variant("glm-tiny-reap"), "mtp"))
    pruned_experts.check_checkpoint(drafting(variant("glm-tiny-reap"), "ngram"))
    pruned_experts.check_checkpoint(drafting(checkpoint, "mtp"))


def test_vllms_own_configuration_says_so(variant) -> None:
    """The rule runs where every start makes its configuration, before any rank exists."""
    drafting = {"method": "mtp", "num_speculative_tokens": 1}
    with pytest.raises(PatchRefusedError, match="remove --speculative-config, or use method ngram"):
        configure(variant("glm-tiny-reap"), 2048, speculative_config=drafting)


def test_a_contradiction_is_refused_by_name(checkpoint: Path, tmp_path: Path) -> None:
    """The experts of one pruning under the plan of another."""
    target = tmp_path / "mixed"
    make("glm-tiny-reap", checkpoint, target)
    plan = json.loads((target / "reap-prune-plan-full.json").read_text())
    plan["1"]["kept"] = [number for number in range(8) if number not in plan["1"]["kept"][:3]]
    (target / "reap-prune-plan-full.json").write_text(json.dumps(plan))
    with pytest.raises(PatchRefusedError, match="layer 1: reap-prune-plan-full"):
        pruned_experts.check_checkpoint(config(target))


# --- a rank's share -----------------------------------------------------------------------------------------


def test_a_third_rank_reads_a_third(variant, tmp_path: Path) -> None:
    """PP3 equals transformers, and no rank reads more than 40 % of the bytes: without an index, and on a
    pruned checkpoint with numbers from 0."""
    source = tmp_path / "checkpoint"
    write(read(variant("glm-tiny-reap-renumbered")), source, per_layer=True)
    (source / "model.safetensors.index.json").unlink()
    reference = Reference(
        variant("glm-tiny-reap-renumbered")
    )  # transformers reads no shards without an index
    asked = prompts_of(reference, 0)
    with Ranks(source, Layout(1, 3), tmp_path, {"load-format": "spark"}) as ranks:
        answers = ranks.complete(asked)
        shares = [int(re.findall(r"(\d+)% of the checkpoint", ranks.log(rank))[0]) for rank in range(3)]
    print(f"\nPP3: ranks read {shares} % of the bytes")
    check(reference, asked, answers)
    assert all(share <= 40 for share in shares), shares


@pytest.mark.parametrize(("partition", "widest"), [("", 0.40), ("2,1,1", 0.40), ("1,1,2", 0.41)])
def test_with_an_index_the_mtp_layer_is_nobodys(partition, widest, sharded: Path, monkeypatch) -> None:
    """The shares of the bytes, counted from names: VLLM_PP_LAYER_PARTITION moves layers and their bytes."""
    from vllm.distributed.utils import get_pp_indices

    if partition:
        monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", partition)
    stored = read_shards(sharded)
    stages = [pretend_model(4, *get_pp_indices(4, rank, 3)) for rank in range(3)]
    shares = [
        size_of(t for name, t in stored.items() if not not_on_this_rank(stage, name))
        / size_of(stored.values())
        for stage in stages
    ]
    assert max(shares) <= widest
    mtp = size_of(t for name, t in stored.items() if ".layers.4." in name) / size_of(stored.values())
    assert sum(shares) == pytest.approx(1 - mtp)


def pretend_model(layers: int, begin: int, end: int, *, drafts: bool = False) -> torch.nn.Module:
    """Module names of a stage with layers [begin, end), as vLLM builds it."""
    from vllm.model_executor.models.utils import PPMissingLayer, _model_to_pp_missing_layer_names

    model = torch.nn.Module()
    # vLLM remembers what a model lacks by its id, which an earlier test's model may have had.
    _model_to_pp_missing_layer_names.pop(id(model), None)
    model.model = torch.nn.Module()
    blocks = [torch.nn.Identity() if begin <= n < end else PPMissingLayer() for n in range(layers)]
    model.model.layers = torch.nn.ModuleList(blocks)
    model.model.embed_tokens = torch.nn.Identity() if begin == 0 else PPMissingLayer()
    model.model.norm = torch.nn.Identity() if end == layers else PPMissingLayer()
    model.lm_head = torch.nn.Identity() if end == layers else PPMissingLayer()
    model.config = SimpleNamespace(
        num_hidden_layers=layers, num_nextn_predict_layers=1, model_type="glm_moe_dsa"
    )
    model.drafts = drafts
    return model


def test_glm_5_2_on_three_ranks_counts_78_layers_not_79() -> None:
    from vllm.distributed.utils import get_pp_indices

    ranges = [get_pp_indices(78, rank, 3) for rank in range(3)]
    assert ranges == [(0, 26), (26, 52), (52, 78)]
    stages = [pretend_model(78, *found) for found in ranges]
    for layer in range(79):
        name = f"model.layers.{layer}.self_attn.o_proj.weight"
        takers = [rank for rank, stage in enumerate(stages) if not not_on_this_rank(stage, name)]
        assert takers == ([layer // 26] if layer < 78 else [])
    for name, rank in {"model.embed_tokens.weight": 0, "model.norm.weight": 2, "lm_head.weight": 2}.items():
        assert [n for n, stage in enumerate(stages) if not not_on_this_rank(stage, name)] == [rank]


def test_the_mtp_layer_on_its_own_takes_itself_and_the_embedding() -> None:
    draft = pretend_model(78, 0, 78, drafts=True)
    wanted = ["model.layers.78.eh_proj.weight", "model.embed_tokens.weight"]
    assert not any(not_on_this_rank(draft, name) for name in wanted)
    assert all(not_on_this_rank(draft, name) for name in ("model.layers.7.mlp.gate.weight", "lm_head.weight"))


# --- the loader ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Mode.DIRECT, Mode.BUFFERED, None])
def test_tensors_are_what_the_safetensors_library_reads(mode, checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    wanted = load_file(path)
    settings = settings_of({"piece_mib": 1, "buffers": 3, "threads": 4})
    found = 0
    for stored, tensor in read_tensors(
        read_header(path), CPU, type(settings)(**{**vars(settings), "mode": mode})
    ):
        assert tensor.dtype == wanted[stored.name].dtype
        assert torch.equal(tensor, wanted[stored.name]), stored.name
        found += 1
    assert found == len(wanted)


def test_unaligned_and_empty_tensors(tmp_path: Path) -> None:
    """A header of odd length puts every element at an odd address."""
    tensors = {"a": torch.randn(3, 5), "none": torch.empty(0, 7), "b": torch.arange(11, dtype=torch.bfloat16)}
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        kind = {torch.float32: "F32", torch.bfloat16: "BF16"}[tensor.dtype]
        header[name] = {
            "dtype": kind,
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (1 - len(text) % 2)
    path = tmp_path / "odd.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    for stored, tensor in read_tensors(read_header(path), CPU, settings_of({})):
        assert torch.equal(tensor, tensors[stored.name])
        assert tensor.shape == tensors[stored.name].shape


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"speed": 1}, "no option 'speed'"),
        ({"mode": "mmap"}, "auto, direct or buffered"),
        ({"threads": 0}, "threads is a positive integer"),
        ({"piece_mib": True}, "piece_mib is a positive integer"),
        ({"buffers": 2}, "at least 1 thread and 3 buffers"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], said: str) -> None:
    from vllm.config.load import LoadConfig

    with pytest.raises(ValueError, match=said):
        SparkLoader(LoadConfig(load_format="spark", model_loader_extra_config=options))


def test_without_the_patch_the_format_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.config.load import LoadConfig
    from vllm.model_executor import model_loader

    monkeypatch.delitem(model_loader._LOAD_FORMAT_TO_MODEL_LOADER, "spark", raising=False)
    with pytest.raises(ValueError, match="Load format `spark` is not supported"):
        model_loader.get_model_loader(LoadConfig(load_format="spark"))
    spark_loader.apply()
    assert isinstance(model_loader.get_model_loader(LoadConfig(load_format="spark")), SparkLoader)


def test_serving_leaves_no_page_of_the_checkpoint_in_the_cache(variant, tmp_path: Path) -> None:
    """And answers as transformers does. The default loader's way of reading leaves every page it read."""
    from vllm.model_executor.model_loader.weight_utils import safetensors_weights_iterator

    source = tmp_path / "checkpoint"
    write(read(variant("glm-tiny-reap")), source, per_layer=True)
    for path in source.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    ours = tokens(engine(source, "--set", '{"load_format": "spark"}'))
    assert not any(map(cached, source.glob("*.safetensors")))
    for _, tensor in safetensors_weights_iterator(list(map(str, source.glob("*.safetensors"))), False):
        tensor.clone()
    assert all(map(cached, source.glob("*.safetensors")))
    assert all(place.regret <= 0.02 for place in Reference(source).disagreements(*ours))


def cached(path: Path) -> int:
    """How many of a file's first bytes a read finds in the page cache."""
    with path.open("rb") as file:
        try:
            return os.preadv(file.fileno(), [bytearray(1 << 20)], 4096, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0


def test_shares_count_all_bytes(sharded: Path) -> None:
    stored = read_shards(sharded)
    sizes = [path.stat().st_size for path in sharded.glob("*.safetensors")]
    assert 0.95 * sum(sizes) < size_of(stored.values()) < sum(sizes)
