"""What happens without each patch: the failure that it is there for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from glmspark.engine.patches.cpu_pipeline import UPSTREAM_WORKER

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


@pytest.mark.timeout(TIMEOUT + 20)
def test_without_the_rotary_patch_answers_are_wrong(checkpoint: Path, reference) -> None:
    # The flag names the op, so the patch leaves it as it is.
    done = engine(checkpoint, "--custom-op", "+rotary_embedding")
    assert done.returncode == 0, done.stderr[-3000:]
    prompt, output = ([int(word) for word in line.split()] for line in done.stdout.strip().splitlines()[-2:])
    assert max((place.regret for place in reference.disagreements(prompt, output)), default=0.0) > 0.02


@pytest.mark.timeout(TIMEOUT + 20)
def test_without_the_pipeline_worker_the_first_request_fails(checkpoint: Path) -> None:
    done = engine(checkpoint, "--stages", "2", "--worker-cls", UPSTREAM_WORKER)
    assert done.returncode != 0
    assert "assert self.intermediate_tensors is not None" in done.stdout + done.stderr
