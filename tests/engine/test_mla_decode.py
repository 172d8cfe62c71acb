"""MLA decoding on 99 KiB of shared memory: the kernel compiled for sm_121, and the choice made of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glmspark.engine import registry
from glmspark.engine.code import Code, fingerprint, installed_code
from glmspark.engine.patch import State, Target
from glmspark.engine.patches import mla_decode, small_heads
from glmspark.engine.patches.mla_decode import KERNEL, MEASURED, SHARED_MEMORY, FittedKernel, choose
from tests.engine.altered import altered

GB10 = Target("0.33.0", "cuda", (12, 1))
GB10_DENSE = Target("0.33.0", "cuda", (12, 1), dense=True)
GB10_LIMIT = 101_376

OPS = "vllm.v1.attention.ops.triton_decode_attention"
PREFILL = "vllm.v1.attention.backends.mla.prefill.flash_attn"
REFUSED, SUPERSEDED = State.REFUSED, State.SUPERSEDED


def kernel_of_0_33(source: str) -> str:
    """0.33.0's kernel from 0.32.0's: one product that became 64 bits wide. Its fingerprint proves it."""
    return source.replace("cur_batch * stride_mid_ob", "cur_batch.to(tl.int64) * stride_mid_ob")


@pytest.fixture(scope="module", params=["0.32.0", "0.33.0"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vLLM's file with the kernel of that version, byte for byte as published."""
    text = installed_code().source(OPS)
    text = text if request.param == "0.32.0" else kernel_of_0_33(text)
    code = Code(installed_code().root, overlay={OPS: text})
    assert fingerprint(code.segment(OPS, KERNEL)) == MEASURED[request.param]
    path = tmp_path_factory.mktemp("ops") / "triton_decode_attention.py"
    path.write_text(text)
    return path


def compiled(source: Path, capability: int, cases: list[str], cache: Path) -> dict[str, int]:
    """Bytes of shared memory of each KV:BLOCK_N:STAGES, compiled by Triton in a process of its own."""
    script = Path(__file__).with_name("compile_mla_decode.py")
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    words = [sys.executable, str(script), str(source), str(capability), *cases]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout))


def test_the_table_is_what_the_compiler_says_for_sm_121(source: Path, tmp_path: Path) -> None:
    cases = [f"fp8:{block}:{stages}" for block, stages in SHARED_MEMORY]
    found = compiled(source, 121, [*cases, "bf16:32:2"], tmp_path)
    assert [found[case] for case in cases] == list(SHARED_MEMORY.values())
    assert found["fp8:32:2"] > GB10_LIMIT  # without the patch
    block, stages = choose(GB10_LIMIT) or (0, 0)
    assert found[f"fp8:{block}:{stages}"] <= GB10_LIMIT  # with it
    assert found["bf16:32:2"] <= GB10_LIMIT  # which the patch leaves alone


@pytest.mark.parametrize(
    ("limit", "choice"),
    [
        (232_448, (32, 2)),
        (102_400, (32, 2)),
        (101_376, (32, 1)),
        (65_536, (16, 2)),
        (51_200, (16, 1)),
        (49_152, None),
    ],
)
def test_the_widest_that_fits(limit: int, choice: tuple[int, int] | None) -> None:
    assert choose(limit) == choice


class Launches:
    """Stands for a compiled kernel: notes what it is launched with."""

    arg_names = ("Q",)

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def __getitem__(self, grid: Any) -> Any:
        return lambda *_args, **kwargs: self.seen.append({"grid": grid, **kwargs})


@pytest.mark.parametrize(
    ("element", "width", "expected"), [(1, 512, (32, 1)), (2, 512, (32, 2)), (1, 256, (32, 2))]
)
def test_only_fp8_keys_of_mla_are_launched_otherwise(
    element: int, width: int, expected: tuple[int, int]
) -> None:
    kernel = Launches()
    fitted = FittedKernel(kernel, GB10_LIMIT)
    keys = SimpleNamespace(element_size=lambda: element)
    fitted[(1, 2, 8)]("q", keys, BLOCK_DMODEL=width, BLOCK_N=32, num_stages=2, num_warps=4)
    (seen,) = kernel.seen
    assert (seen["BLOCK_N"], seen["num_stages"]) == expected
    assert (seen["grid"], seen["num_warps"], seen["BLOCK_DMODEL"]) == ((1, 2, 8), 4, width)
    assert fitted.arg_names == ("Q",)


@pytest.mark.parametrize(
    ("patch", "target", "state"),
    [
        (mla_decode, GB10, State.APPLIED),
        (mla_decode, Target("0.33.0", "cuda", (8, 9)), State.APPLIED),
        (mla_decode, Target("0.33.0", "cuda", (9, 0)), State.NOT_NEEDED),
        (mla_decode, Target("0.33.0", "cuda"), State.NOT_NEEDED),
        (mla_decode, Target("0.32.0", "cpu"), State.NOT_NEEDED),
        (small_heads, GB10_DENSE, State.APPLIED),
        (small_heads, GB10, State.NOT_NEEDED),
        (small_heads, Target("0.32.0", "cpu", dense=True), State.NOT_NEEDED),
    ],
)
def test_where_each_is_needed(patch: Any, target: Target, state: State) -> None:
    outcome = registry.judge(patch.PATCH, target, installed_code())
    assert outcome.state is state, outcome.why


@pytest.mark.parametrize(
    ("patch", "module", "pattern", "replacement", "state", "seen"),
    [
        (mla_decode, OPS, r"BLOCK_DMODEL >= 1024", "BLOCK_DMODEL >= 512", SUPERSEDED, "itself"),
        (mla_decode, OPS, r"BLOCK = 32\n", "BLOCK = 64\n", REFUSED, "'BLOCK = 32'"),
        (mla_decode, OPS, r"num_stages=num_stages,", "", REFUSED, "'num_stages=num_stages'"),
        (
            mla_decode,
            OPS,
            r"acc = tl.zeros\(\[BLOCK_H, BLOCK_DV\]",
            "acc = tl.empty([BLOCK_H, BLOCK_DV]",
            REFUSED,
            "another kernel",
        ),
        (mla_decode, OPS, KERNEL, "_fwd_stage1", REFUSED, KERNEL),
        (
            small_heads,
            PREFILL,
            r"mla_dimensions in \[",
            "known(mla_dimensions) or [",
            SUPERSEDED,
            "list of dimensions",
        ),
        (
            small_heads,
            PREFILL,
            r"qk_nope_head_dim=128,\s+qk_rope_head_dim=64,\s+v_head_dim=128",
            "qk_nope_head_dim=64, qk_rope_head_dim=64, v_head_dim=64",
            SUPERSEDED,
            "itself",
        ),
        (small_heads, PREFILL, r"requires_v_padding", "pads_v", REFUSED, "no requires_v_padding"),
        (small_heads, PREFILL, r"functional\.pad\(", "functional.fill(", REFUSED, "does not pad values"),
        (small_heads, PREFILL, r"return not self\.requires_v_padding", "return True", REFUSED, "cut output"),
    ],
)
def test_an_altered_vllm(
    patch: Any, module: str, pattern: str, replacement: str, state: State, seen: str
) -> None:
    outcome = registry.judge(patch.PATCH, GB10_DENSE, altered(module, pattern, replacement))
    assert outcome.state is state, outcome.why
    assert seen in outcome.why


def test_heads_of_glm_tiny_are_admitted_with_padded_values_and_others_as_before() -> None:
    class Backend:
        def __init__(self, nope: int, rope: int, value: int) -> None:
            self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim = nope, rope, value
            self.requires_v_padding = False

        @classmethod
        def supports_mla_dimensions(cls, dims: Any) -> bool:
            return dims.v_head_dim == 256

    def dims(nope: int, rope: int, value: int) -> SimpleNamespace:
        return SimpleNamespace(qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=value)

    assert not Backend.supports_mla_dimensions(dims(64, 64, 64))  # without the patch
    for _ in range(2):  # a second model in the same process changes nothing
        small_heads.admit(Backend)
    assert Backend.supports_mla_dimensions(dims(64, 64, 64))
    assert Backend.supports_mla_dimensions(dims(192, 64, 256))
    assert not Backend.supports_mla_dimensions(dims(64, 64, 128))
    assert Backend(64, 64, 64).requires_v_padding
    assert not Backend(192, 64, 256).requires_v_padding


def test_upstream_refuses_glm_tinys_heads() -> None:
    """The fact that the other patch is there for, in vLLM's own code."""
    text = installed_code().segment(PREFILL, "FlashAttnPrefillBackend.supports_mla_dimensions")
    sizes = [tuple(map(int, found)) for found in re.findall(r"=(\d+),\s+\w+=(\d+),\s+\w+=(\d+)", text)]
    assert len(sizes) == 4
    assert small_heads.HEADS not in sizes
