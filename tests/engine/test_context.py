"""Dense attention beyond `index_topk` is another model: refused, unless it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from glmspark.engine.patch import DENSE_VARIABLE, PatchRefusedError


def configure(checkpoint: Path, max_model_len: int, **arguments):
    """vLLM's configuration for the checkpoint, as every rank makes it first."""
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        str(checkpoint), dtype="float32", enforce_eager=True, max_model_len=max_model_len, **arguments
    ).create_engine_config()


def test_a_start_beyond_index_topk_says_why_not(checkpoint: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "glmspark.engine.serve", str(checkpoint), "--max-model-len", "4096"],
        env={name: value for name, value in os.environ.items() if name != DENSE_VARIABLE},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    block = done.stderr[done.stderr.index("glmspark.engine.serve:") :]
    assert "max_model_len 4096 is above index_topk 2048" in block
    assert "--max-model-len 2048" in block
    assert "dense_attention: true" in block
    assert "Traceback" not in block


def test_up_to_index_topk_it_starts(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DENSE_VARIABLE, raising=False)
    assert configure(checkpoint, 2048).model_config.max_model_len == 2048
    with pytest.raises(PatchRefusedError, match="above index_topk 2048"):
        configure(checkpoint, 2049)


def test_beyond_it_where_the_recipe_allows_it(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DENSE_VARIABLE, "1")
    assert configure(checkpoint, 8192).model_config.max_model_len == 8192
    monkeypatch.setenv(DENSE_VARIABLE, "yes")
    with pytest.raises(PatchRefusedError, match="it takes 0 or 1"):
        configure(checkpoint, 8192)


def test_the_plugin_chooses_worker_and_rotary_code(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DENSE_VARIABLE, raising=False)
    from glmspark.engine import plugin
    from glmspark.engine.patches.cpu_pipeline import UPSTREAM_WORKER, WORKER_CLASS

    one = configure(checkpoint, 2048)
    assert one.parallel_config.worker_cls == UPSTREAM_WORKER
    assert "-rotary_embedding" in one.compilation_config.custom_ops
    stages = {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"}
    assert configure(checkpoint, 2048, **stages).parallel_config.worker_cls == WORKER_CLASS
    named = configure(checkpoint, 2048, **stages, worker_cls=UPSTREAM_WORKER)
    assert named.parallel_config.worker_cls == UPSTREAM_WORKER
    asked = configure(checkpoint, 2048, compilation_config={"custom_ops": ["+rotary_embedding"]})
    assert "-rotary_embedding" not in asked.compilation_config.custom_ops

    before = plugin.outcomes()
    plugin.register()
    assert plugin.outcomes() == before
