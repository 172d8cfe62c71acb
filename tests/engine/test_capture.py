"""States captured from a running engine are the model's own, and go on to a drafter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from glmspark.engine.start_method import prepared
from glmspark.speculator.dataset import Dataset
from tests.engine.reference import Reference
from tools.glm_tiny.drafter_prompts import lines

PROMPTS = 12


def glmspark(*words: str, **more: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "glmspark", "speculator", *words, "--json"],
        env={**(prepared(os.environ) or os.environ), "TORCH_COMPILE_DISABLE": "1", **more},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.timeout(280)
def test_states_are_captured_and_a_drafter_made(
    checkpoint: Path, reference: Reference, tmp_path: Path
) -> None:
    prompts, states = tmp_path / "prompts.jsonl", tmp_path / "states"
    prompts.write_text("".join(f"{line}\n" for line in lines(PROMPTS, 3)))
    words = ("--dtype", "float32", "--kv-cache", "64MiB", "--max-tokens", "48", "--aux-layers", "1,3")
    done = glmspark("capture", str(checkpoint), str(prompts), "--out", str(states), *words)
    assert (done["sequences"], done["whole"], done["left_out"]) == (PROMPTS, True, 0)

    data = Dataset.open(states)
    assert data.aux_layers == (1, 3)
    assert data.provenance["target"] == str(checkpoint.resolve())
    head = reference.model.get_output_embeddings().weight
    for sequence in data.sequences():
        with torch.no_grad():
            read = reference.model(sequence.tokens[None], output_hidden_states=True).hidden_states
        wanted = torch.cat([read[layer][0] for layer in data.aux_layers], dim=-1)
        torch.testing.assert_close(sequence.states, wanted, atol=5e-3, rtol=1e-3)
        # `last` gives the target's own distribution, and so the answer that it gave.
        said = (sequence.last @ head.T).argmax(-1)[sequence.prompt - 1 : -1]
        assert torch.equal(said, sequence.tokens[sequence.prompt :])

    training, drafter = tmp_path / "training", tmp_path / "drafter"
    small = ("--steps", "2", "--tokens", "400", "--anchors", "4", "--window", "64", "--device", "cpu")
    glmspark("train", str(states), "--out", str(training), *small)
    glmspark("export", str(training), str(drafter))
    found = glmspark("eval", str(drafter), str(states), "--all")
    assert found["all"]["sequences"] > 0
    assert json.loads((drafter / "config.json").read_text())["aux_hidden_state_layer_ids"] == [1, 3]
    assert json.loads((drafter / "provenance.json").read_text())["data"]["prompts"] == PROMPTS
