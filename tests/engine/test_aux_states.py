"""A drafter on the last of three stages sees the hidden states of all layers, as it does with one stage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.engine.aux_states_of_stages import LAYERS, PROMPT


def states(checkpoint: Path, output: Path, stages: int) -> torch.Tensor:
    """[layers, tokens, hidden size] as the last stage hands them to a drafter."""
    words = [str(checkpoint), str(output), "--stages", str(stages)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.aux_states_of_stages", *words],
        env={**os.environ, "TORCH_COMPILE_DISABLE": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.tensor(json.loads(output.read_text()))


@pytest.mark.timeout(420)
def test_states_of_all_stages_reach_the_last(checkpoint: Path, tmp_path: Path) -> None:
    """Stages of 1, 2 and 1 layers: a state of the first stage, one of the second's middle, one of its end."""
    one, three = (states(checkpoint, tmp_path / str(stages), stages) for stages in (1, 3))
    assert one.shape == (len(LAYERS), len(PROMPT), 256)
    assert torch.equal(one, three)
    assert not torch.equal(one[0], one[1])
