"""Recipes of other formats: every key kept, changed or refused, and what comes out is a recipe."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.config import Recipe, RecipeError, parse_recipe
from glmspark.config.imports.command import (
    TemplateError,
    fill_lenient,
    fill_strict,
    first_command,
    parse_serve,
)
from glmspark.config.imports.recipes import Imported, import_recipe

V1 = r"""
recipe_version: "1"
name: GLM Demo
model: org/GLM-NVFP4
container: vllm-node
cluster_only: true
mods: [mods/some-sm121-fix]
build_args: ["--exp-b12x"]
defaults: {port: 8000, host: 0.0.0.0, tensor_parallel: 4, u: 1, spec: '{"method":"mtp","n":3}'}
env: {NCCL_NVLS_ENABLE: "0", NCCL_SOCKET_IFNAME: eth0, HF_HOME: $HOME/x, HF_TOKEN: hf_x}
command: |
  # serve it
  VLLM_LOGGING_LEVEL=INFO vllm serve org/GLM-NVFP4 --host {host} --port {port} \
    -tp {tensor_parallel} --speculative-config '{spec}' --trust-remote-code \
    --max-model-len 128K --max-num-seqs 8 --gpu-memory-utilization 0.85 --enforce-eager \
    --reasoning-parser glm45 --tool-call-parser glm47 --enable-auto-tool-choice \
    --kv-cache-dtype fp8 --no-enable-prefix-caching --compilation-config.mode 0 \
    --hf-overrides '{{"key": "literal braces doubled"}}' --distributed-executor-backend ray
"""

V2 = r"""
recipe_version: "2"
model: org/GLM-NVFP4
model_revision: "0123abcd"
runtime: vllm
container: registry/img@sha256:abc
min_nodes: 4
defaults: {port: 8000, tensor_parallel: 4, pipeline_parallel: 1, max_model_len: 262144}
overrides:
  - when: {nodes: 2}
    defaults: {max_model_len: 65536}
mods: ["@eugr/some-sm121-fix"]
pre_exec: ["rm -rf /"]
metadata: {model_params: 753B, nested: {list: [1, two, {three: 3}]}}
some_future_key: [a, b]
command: |
  vllm serve {model} --port {port} -tp {tensor_parallel} --max-model-len {max_model_len} \
    --speculative-config '{"method": "mtp", "inner": {"n": 3}}' --served-model-name glm {extra}
"""


def taken(text: str, **options: Any) -> tuple[Recipe, Imported]:
    found = import_recipe(text.encode(), "old.yaml", **options)
    return parse_recipe(found.text, "new.yaml"), found


def outcomes(found: Imported) -> dict[str, str]:
    return {note.name: note.outcome for note in found.notes}


def test_a_whole_v1_recipe() -> None:
    recipe, found = taken(V1, kv_cache="20GiB")
    assert found.version == 1
    assert recipe.name == "glm-demo"
    assert str(recipe.model.source) == "hf:org/GLM-NVFP4@main"
    assert recipe.model.served_name == "GLM-NVFP4"
    assert (recipe.layout.tp, recipe.layout.pp, recipe.layout.backend) == (4, 1, "ray")
    engine = recipe.engine
    assert (engine.max_model_len, engine.max_num_seqs, engine.kv_cache_memory) == (131072, 8, 20 * 2**30)
    assert engine.enforce_eager
    assert (engine.reasoning_parser, engine.tool_call_parser) == ("glm45", "glm47")
    assert engine.args == {
        "speculative_config": {"method": "mtp", "n": 3},
        "kv_cache_dtype": "fp8",
        "enable_prefix_caching": False,
        "compilation_config": {"mode": 0},
        "hf_overrides": {"key": "literal braces doubled"},
    }
    assert engine.env == {"NCCL_NVLS_ENABLE": "0", "VLLM_LOGGING_LEVEL": "INFO"}
    assert recipe.imported == {
        "recipe_version": "1",
        "container": "vllm-node",
        "cluster_only": True,
        "build_args": ("--exp-b12x",),
    }
    said = outcomes(found)
    assert {name for name, outcome in said.items() if outcome == "refused"} == {
        "defaults.u",
        "env.NCCL_SOCKET_IFNAME",
        "env.HF_HOME",
        "env.HF_TOKEN",
        "--host",
        "--port",
        "--trust-remote-code",
        "mods",
    }
    assert said["--gpu-memory-utilization"] == "changed"
    assert said["model"] == "changed"
    assert "hf_x" not in found.text.decode() + str(found.notes)
    assert {note.line for note in found.notes if note.name == "mods"} == {7}


def test_a_whole_v2_recipe_keeps_what_it_does_not_know() -> None:
    recipe, found = taken(V2)
    assert found.version == 2
    assert recipe.name == "old"
    assert str(recipe.model.source) == "hf:org/GLM-NVFP4@0123abcd"
    assert recipe.model.served_name == "glm"
    assert recipe.engine.max_model_len == 262144
    assert recipe.engine.args["speculative_config"] == {"method": "mtp", "inner": {"n": 3}}
    assert recipe.imported["metadata"] == {
        "model_params": "753B",
        "nested": {"list": (1, "two", {"three": 3})},
    }
    assert recipe.imported["some_future_key"] == ("a", "b")
    assert recipe.imported["overrides"][0]["when"] == {"nodes": 2}
    said = outcomes(found)
    assert (said["mods"], said["pre_exec"]) == ("refused", "refused")
    assert "rm -rf" not in found.text.decode()
    assert said["engine.kv_cache_memory"] == "changed"
    assert said["{extra}"] == "kept"


def test_v2_without_a_command_has_its_flags_in_defaults() -> None:
    recipe, _ = taken(
        "recipe_version: '2'\nmodel: org/m\n"
        "defaults: {tensor_parallel: 2, max_model_len: 4096, kv_cache_dtype: fp8, port: 1}\n"
    )
    assert (recipe.layout.tp, recipe.engine.max_model_len, recipe.engine.args) == (
        2,
        4096,
        {"kv_cache_dtype": "fp8"},
    )


def test_a_blank_line_after_a_backslash_ends_the_command_and_is_said() -> None:
    text = (
        "recipe_version: '1'\nmodel: o/m\ncontainer: c\nname: n\ncommand: |\n"
        "  vllm serve o/m --max-num-seqs 2 \\\n\n    --hf-overrides '{{}}'\n"
    )
    recipe, found = taken(text)
    assert recipe.engine.args == {}
    (note,) = [note for note in found.notes if note.name == "command"]
    assert note.outcome == "refused"
    assert note.line == 8
    assert "--hf-overrides" in note.what


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("{port}", "{prot}"), "{prot} is not filled by defaults"),
        (("'{spec}'", "'{spec!r}'"), "{spec!r} is not filled"),
        (("'{spec}'", "'{spec.__class__}'"), "is not filled"),
        (('\'{{"key"', '\'{"key"'), "is not filled"),
        (("'{spec}'", "'{spec}"), "quotes of the command do not match"),
        (("vllm serve", "echo x && vllm serve"), "only `vllm serve` is understood"),
        (("--enforce-eager", "--enforce-eager && reboot"), "'&&' is the shell's"),
        (("--enforce-eager", "--x $(reboot)"), "is the shell's"),
        (("-tp {tensor_parallel}", "-tp many"), "--tensor-parallel-size is 'many'"),
        (("org/GLM-NVFP4", "org/GLM:Q4_K_M"), "GGUF files are not served here"),
        (("recipe_version:", "recipe_version: 1\nrecipe_version:"), "given twice"),
    ],
)
def test_what_cannot_be_taken_over_is_an_error_with_its_line(change: tuple[str, str], text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        taken(V1.replace(*change))
    assert any(text in problem.message + (problem.hint or "") for problem in caught.value.problems)
    assert caught.value.line is not None


@pytest.mark.parametrize("raw", [b"", b"[]", b"\xff", b"x", b"recipe: 1\n", b"model: o/m\n"])
def test_what_is_no_old_recipe(raw: bytes) -> None:
    if raw == b"model: o/m\n":
        assert import_recipe(raw, "x.yaml").version == 2
        return
    with pytest.raises(RecipeError):
        import_recipe(raw, "x.yaml")


@given(st.text(max_size=60))
def test_any_command_is_taken_over_or_refused(command: str) -> None:
    text = json.dumps(
        {"recipe_version": "1", "name": "n", "container": "c", "model": "o/m", "command": command}
    )
    try:
        recipe, _ = taken(text)
    except RecipeError:
        return
    assert recipe.layout.tp >= 1


NAMES = st.sampled_from(["a", "b", "port"])
PLAIN = st.text(st.sampled_from(string.ascii_letters + " -'\"[]:,"), max_size=8)


@given(st.lists(st.one_of(PLAIN, NAMES.map(lambda name: "{" + name + "}"), st.just("{{"), st.just("}}"))))
def test_v1_fills_as_python_does(parts: list[str]) -> None:
    text = "".join(parts)
    values = {"a": "1", "b": "{x}", "port": 8000}
    try:
        wanted = text.format(**values)
    except (ValueError, KeyError, IndexError):
        with pytest.raises(TemplateError):
            fill_strict(text, values)
    else:
        assert fill_strict(text, values) == wanted


def test_v2_fills_again_and_again_but_not_for_ever() -> None:
    assert fill_lenient("{a}", {"a": "{b}", "b": "x"}) == ("x", [])
    assert fill_lenient('{"j": {"k": 1}} {no}', {}) == ('{"j": {"k": 1}} {no}', ["no"])
    assert fill_lenient('{{"j": {{"k": 1}}}}', {}) == ('{"j": {"k": 1}}', [])
    assert len(fill_lenient("{a}", {"a": "{a}{a}"})[0]) < 10_000


def test_lines_are_joined_as_a_shell_does() -> None:
    assert first_command("\n# c\nvllm serve \\  \n  x\n").text.split() == ["vllm", "serve", "x"]
    assert first_command("a \\\n").text == "a"
    cut = first_command("a\n\n# c\nb \\\n c")
    assert (cut.text, cut.rest, cut.line) == ("a", "b \\\n c", 3)


def test_flags_in_all_their_forms() -> None:
    found = parse_serve(
        "env A=1 exec vllm serve o/m --a=1 --b 0.5 --c -1 --d x y --no-e --f -O3 -pp 2 "
        "-cc.x.y 1 --cc-like '[1]' odd-end"
    )
    assert found.model == "o/m"
    assert found.env == {"A": "1"}
    assert found.flags == {
        "a": 1,
        "b": 0.5,
        "c": -1,
        "d": ("x", "y"),
        "e": False,
        "f": True,
        "optimization-level": 3,
        "pipeline-parallel-size": 2,
        "compilation-config": {"x": {"y": 1}},
        "cc-like": ([1], "odd-end"),
    }


@pytest.mark.parametrize(
    ("flag", "backend"),
    [("mp", "mp"), ("ray", "ray"), ("external_launcher", "lockstep"), ("uni", None)],
)
def test_a_backend_is_taken_over_under_its_name_here(flag: str, backend: str | None) -> None:
    text = V2.replace("vllm serve", f"vllm serve --distributed-executor-backend {flag} -dcp 2 -tp 2", 1)
    recipe, found = taken(text)
    assert (recipe.layout.backend, recipe.layout.dcp) == (backend or "mp", 2)
    said = outcomes(found)["--distributed-executor-backend"]
    assert said == ("refused" if backend is None else "changed" if backend == "lockstep" else "kept")
