"""`glmspark patches` on the installed vLLM."""

from __future__ import annotations

import json
import subprocess
import sys


def test_the_patches_on_the_vllm_at_hand() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "glmspark", "patches", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["vllm"]["platform"] == "cpu"
    states = {row["name"]: row["state"] for row in found["patches"]}
    assert states == {
        "dense-attention": "applied",
        "pruned-experts": "applied",
        "rank-loading": "applied",
        "spark-loader": "applied",
        "small-heads": "not needed here",
        "mla-decode": "not needed here",
        "dense-decode": "not needed here",
        "sparse-decode": "not needed here",
        "nvfp4-experts": "not needed here",
        "cpu-rotary": "applied",
        "cpu-pipeline": "applied",
        # Told of the ranks, which are prepared to fork, not of the command line, which is none.
        "cpu-fork": "applied",
        "cpu-ray": "not needed here",
        "ray-nodes": "not needed here",
        "fabric-addresses": "applied",
        "pipeline-speculation": "applied",
        "sparse-aux-states": "not needed here",
        "pipeline-aux-states": "applied",
        "cpu-dcp": "applied",
        "dcp-query": "not needed here",
        "draft-policy": "not needed here",
    }
