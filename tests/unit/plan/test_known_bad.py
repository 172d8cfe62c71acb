"""Every rule of the table: a setting that it refuses, and its neighbour that it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glmspark.models import Checkpoint, inspect_checkpoint
from glmspark.plan import PlanError, plan_local
from glmspark.plan.known_bad import RULES, check_known_bad, known_bad
from glmspark.plan.lint import lint_recipe
from glmspark.plan.setting import Setting
from tests.unit.models.toys import tensors, toy, write_checkpoint
from tests.unit.plan.plans import ROOMY, checkpoint, recipe

ENGINE = {"max_model_len": 64, "max_num_seqs": 4, "max_num_batched_tokens": 64, "kv_cache_memory": "16MiB"}


def engine(**changes: Any) -> dict[str, Any]:
    return {**ENGINE, **changes}


def drafting(method: str, tokens: int = 3, **args: Any) -> dict[str, Any]:
    """engine.args with a speculative_config."""
    return {"speculative_config": {"method": method, "num_speculative_tokens": tokens, **args}}


def setting(platform: Any = "cuda", model: Checkpoint | None = None, **changes: Any) -> Setting:
    """A setting of a recipe whose engine section is changed; fields of the setting itself by their names."""
    own = {name: changes.pop(name) for name in list(changes) if name in Setting.__dataclass_fields__}
    return Setting(recipe(engine=engine(**changes)), model, platform, **own)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return checkpoint(tmp_path_factory.mktemp("model"))


def names(found: Setting) -> set[str]:
    return {bad.rule.name for bad in known_bad(found)}


FULL = {"compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"}}
LADDER = {"cudagraph_capture_sizes": [4, 8, 12, 16]}
ATOMIC = {"VLLM_MARLIN_USE_ATOMIC_ADD": "1"}

# rule: (setting that it refuses, changes after which it does not)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cpu-drafter": ({"platform": "cpu", "args": drafting("dspark")}, {"args": drafting("ngram")}),
    "cpu-ngram-gpu": ({"platform": "cpu", "args": drafting("ngram_gpu")}, {"platform": "cuda"}),
    "cpu-kv-cache": (
        {"platform": "cpu", "args": {"kv_cache_dtype": "fp8"}},
        {"args": {"kv_cache_dtype": "auto"}},
    ),
    "dspark-with-dcp": ({"tp": 4, "dcp": 4, "args": drafting("dspark")}, {"args": drafting("mtp")}),
    "mtp-dcp-full-graphs": (
        {"dcp": 2, "tp": 2, "args": {**drafting("mtp"), **FULL}},
        {"enforce_eager": True},
    ),
    "a2a-on-a-ring": ({"dcp": 4, "tp": 4, "all_pairs": False}, {"args": {"dcp_comm_backend": "ag_rs"}}),
    "nvfp4-kv-cache": ({"args": {"kv_cache_dtype": "nvfp4_ds_mla"}}, {"capability": (10, 0)}),
    "drafter-over-stages": ({"pp": 3, "args": drafting("eagle3")}, {"args": drafting("suffix")}),
    "graphs-without-ladder": (
        {"args": {**drafting("mtp"), "cudagraph_capture_sizes": [4, 8, 16]}},
        {"args": {**drafting("mtp"), **LADDER}},
    ),
    "atomic-sums-with-dflash": ({"tp": 4, "args": drafting("dflash"), "env": ATOMIC}, {"env": {}}),
    "b12x-with-expert-parallelism": (
        {"args": {"moe_backend": "flashinfer-b12x", "enable_expert_parallel": True}},
        {"args": {"moe_backend": "marlin", "enable_expert_parallel": True}},
    ),
    "whole-file-loader": ({"args": {"load_format": "fastsafetensors"}}, {"capability": (9, 0)}),
    "loading-through-the-page-cache": (
        {"args": {"safetensors_load_strategy": "prefetch"}},
        {"args": {"load_format": "spark"}},
    ),
    "old-nccl-with-graphs": ({"nodes": 2, "nccl": (2, 28, 9)}, {"nccl": (2, 30, 4)}),
}
WITH_A_MODEL = {
    "cpu-quantization", "dsa-with-dcp", "rounded-inputs-without-scales", "contradicting-experts"
}  # fmt: skip


def test_every_rule_has_its_case() -> None:
    assert {rule.name for rule in RULES} == set(CASES) | WITH_A_MODEL
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.next and rule.source and rule.place for rule in RULES)


@pytest.mark.parametrize("name", CASES)
def test_a_rule_refuses_its_setting_and_not_the_neighbour(name: str) -> None:
    bad, mend = CASES[name]
    assert names(setting(**bad)) == {name}
    assert name not in names(setting(**{**bad, **mend}))


def test_what_is_not_in_the_table_is_left_alone(model: Checkpoint) -> None:
    assert names(setting("cpu", model)) == set()
    assert names(setting("cuda", model)) == set()
    assert names(setting("cuda", model, tp=4, dcp=4, dense_attention=True, args=drafting("mtp", 1))) == set()


def test_dsa_and_dcp_exclude_each_other_on_capability_12(model: Checkpoint) -> None:
    bad = setting("cuda", model, tp=4, dcp=4)
    assert names(bad) == {"dsa-with-dcp"}
    assert names(setting("cuda", model, tp=4, dcp=4, dense_attention=True)) == set()
    for change in ({"capability": (9, 0)}, {"dcp": 1}, {"checkpoint": None}):
        assert names(replace(bad, **change)) == set()


def quantized(directory: Path, method: str, parts: tuple[str, ...] = ("weight",)) -> Checkpoint:
    """A toy whose experts are stored in these parts."""
    found: dict[str, tuple[str, list[int]]] = {}
    for name, (kind, shape) in tensors().items():
        if ".experts." in name and name.endswith(".weight"):
            found |= {f"{name.removesuffix('weight')}{part}": ("U8", shape) for part in parts}
        else:
            found[name] = (kind, shape)
    config = toy(quantization_config={"quant_method": method})
    return inspect_checkpoint(write_checkpoint(directory, config, found))


def test_quantized_weights_have_no_cpu_kernels(tmp_path: Path) -> None:
    model = quantized(tmp_path / "m", "compressed-tensors", ("weight_packed", "weight_scale"))
    assert names(setting("cpu", model)) == {"cpu-quantization"}
    assert names(setting("cuda", model)) == set()


@pytest.mark.parametrize(
    ("backend", "parts", "bad"),
    [
        ("flashinfer_cutlass", ("weight", "weight_scale_2"), True),
        ("flashinfer_cutlass", ("weight", "weight_scale_2", "input_scale"), False),
        ("marlin", ("weight", "weight_scale_2"), False),
        ("auto", ("weight", "weight_scale_2"), False),
    ],
)
def test_rounding_inputs_takes_input_scales(backend, parts, bad, tmp_path: Path) -> None:
    found = setting("cuda", quantized(tmp_path / "m", "modelopt", parts), args={"moe_backend": backend})
    assert ("rounded-inputs-without-scales" in names(found)) is bad


def test_experts_that_contradict_their_router(tmp_path: Path, model: Checkpoint) -> None:
    """Renumbered experts under a router with more rows: which are theirs is not said."""
    found = {
        name: (kind, [shape[0] + 4, *shape[1:]] if ".mlp.gate." in name else shape)
        for name, (kind, shape) in tensors().items()
    }
    whole = inspect_checkpoint(write_checkpoint(tmp_path / "whole", toy(), found))
    assert names(setting("cuda", whole)) == {"contradicting-experts"}
    assert names(setting("cuda", model)) == set()


def test_the_first_is_the_error_and_the_others_are_named() -> None:
    both = setting(args={"load_format": "fastsafetensors", "kv_cache_dtype": "nvfp4_ds_mla"})
    with pytest.raises(PlanError, match="compute capability 10 only") as caught:
        check_known_bad(both)
    assert "whole-file-loader: " in str(caught.value.seen)
    assert "fp8_ds_mla" in str(caught.value.next)
    check_known_bad(setting())


def test_a_plan_refuses_before_it_measures_memory(model: Checkpoint) -> None:
    bad = recipe(engine=engine(args={"kv_cache_dtype": "fp8"}))
    with pytest.raises(PlanError, match="keeps its cache in the engine's dtype"):
        plan_local(bad, model, facts=ROOMY)


def test_lint_names_line_and_way_out() -> None:
    raw = (
        b"recipe: 1\nname: x\nmodel: {source: 'hf:a/b@main', served_name: x}\nneeds: {platform: cuda}\n"
        b"engine:\n"
        b"  max_model_len: 64\n  max_num_seqs: 4\n  max_num_batched_tokens: 64\n  kv_cache_memory: 16MiB\n"
        b"  args:\n    load_format: fastsafetensors\ncanaries: [{probe: ranks}]\n"
    )
    (problem,) = lint_recipe(raw).problems
    assert (problem.line, "fastsafetensors" in problem.message) == (11, True)
    assert problem.hint is not None
    assert "load_format: spark" in problem.hint
    assert lint_recipe(raw.replace(b"fastsafetensors", b"spark")).ok
    lacking = raw.replace(b"canaries:", b"lacks: [a loader]\ncanaries:")
    assert lint_recipe(lacking).ok
