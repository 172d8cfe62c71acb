"""What happens without each patch: the failure that it is there for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from glmspark.config import load_recipe
from glmspark.engine.patches.cpu_pipeline import UPSTREAM_WORKER
from glmspark.models import inspect_checkpoint
from glmspark.plan import MachineFacts, plan_local

TIMEOUT = 200


def engine(checkpoint: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run engine_in_one_process.py: start an engine, continue a prompt, print the tokens."""
    return subprocess.run(
        [sys.executable, "-m", "tests.engine.engine_in_one_process", str(checkpoint), *words],
        env={**os.environ, "TORCH_COMPILE_DISABLE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


@pytest.mark.timeout(TIMEOUT + 20)
def test_without_the_plugin_glm_does_not_start(checkpoint: Path) -> None:
    done = engine(checkpoint, VLLM_PLUGINS="")
    assert done.returncode != 0
    assert "Sparse Attention is not supported on CPU" in done.stderr


@pytest.fixture(scope="module")
def without_rotary(checkpoint: Path) -> list[str]:
    """What the engine prints. The flag names the op, so the patch leaves it as it is."""
    done = engine(checkpoint, "--custom-op", "+rotary_embedding")
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()


@pytest.mark.timeout(TIMEOUT + 20)
def test_weights_and_kv_cache_are_as_large_as_planned(checkpoint: Path, without_rotary: list[str]) -> None:
    """Of one rank in float32: the same in any engine, with or without a patch."""
    held = json.loads(without_rotary[-3])
    recipe = load_recipe("glm-tiny")
    settings = {"dtype": "float32", "max_model_len": 2048, "kv_cache_memory": 64 << 20}
    recipe = recipe.model_copy(update={"engine": recipe.engine.model_copy(update=settings)})
    roomy = MachineFacts("here", (0, 1), 2**50, 2**50)
    memory = plan_local(recipe, inspect_checkpoint(checkpoint), facts=roomy, tp=1, pp=1).ranks[0].memory
    assert memory.weights == pytest.approx(held["weights"], rel=0.02)
    assert memory.kv_cache == pytest.approx(held["kv"], rel=0.02)


def test_without_the_rotary_patch_answers_are_wrong(without_rotary: list[str], reference) -> None:
    prompt, output = ([int(word) for word in line.split()] for line in without_rotary[-2:])
    assert max((place.regret for place in reference.disagreements(prompt, output)), default=0.0) > 0.02


@pytest.mark.timeout(TIMEOUT + 20)
def test_without_the_pipeline_worker_the_first_request_fails(checkpoint: Path) -> None:
    done = engine(checkpoint, "--stages", "2", "--worker-cls", UPSTREAM_WORKER)
    assert done.returncode != 0
    assert "assert self.intermediate_tensors is not None" in done.stdout + done.stderr
