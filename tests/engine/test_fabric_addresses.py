"""A worker that stands elsewhere than the plan says ends the start, before any group is formed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.test_without_patches import TIMEOUT, engine


@pytest.mark.timeout(TIMEOUT + 20)
def test_a_worker_with_another_address_than_the_plan_gives_it(checkpoint: Path) -> None:
    """Without the patch this engine starts: both workers are on this machine, whatever the plan says."""
    done = engine(
        checkpoint,
        "--stages",
        "2",
        VLLM_HOST_IP="127.0.0.1",
        GLOO_SOCKET_IFNAME="lo",
        GLMSPARK_FABRIC="127.0.0.1@lo,127.0.0.9@lo",
    )
    assert done.returncode != 0
    said = done.stdout + done.stderr
    where = "rank 1 of 2: the plan has it at 127.0.0.9 on lo"
    assert f"{where}, but VLLM_HOST_IP is 127.0.0.1 in this process" in said
    assert "Loading weights" not in said
