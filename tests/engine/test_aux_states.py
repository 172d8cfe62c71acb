"""A drafter on the last of three stages sees the hidden states of all layers, as transformers has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from glmspark.engine.start_method import prepared
from tests.engine.aux_states_of_stages import LAYERS, PROMPT
from tests.engine.reference import Reference


def states(checkpoint: Path, output: Path, stages: int) -> torch.Tensor:
    """[layers, tokens, hidden size] as the last stage hands them to a drafter."""
    words = [str(checkpoint), str(output), "--stages", str(stages)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.aux_states_of_stages", *words],
        # Forked workers: vLLM is imported once.
        env={**(prepared(os.environ) or os.environ), "TORCH_COMPILE_DISABLE": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.tensor(json.loads(output.read_text()))


@pytest.mark.timeout(240)
def test_states_of_all_stages_reach_the_last(checkpoint: Path, reference: Reference, tmp_path: Path) -> None:
    """Stages of 1, 2 and 1 layers: a state of the first stage, one of the second's middle, one of its end."""
    found = states(checkpoint, tmp_path / "states", 3)
    assert found.shape == (len(LAYERS), len(PROMPT), 256)
    with torch.no_grad():
        read = reference.model(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states
    wanted = torch.stack([read[layer][0] for layer in LAYERS])
    torch.testing.assert_close(found, wanted, atol=5e-3, rtol=1e-3)
