"""Drafters from data set to directory, on a made-up target: computed, kept and refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from glmspark.speculator import evaluation, plot, store, training
from glmspark.speculator.choices import drafter_in
from glmspark.speculator.dataset import Dataset, Sequence, Writer
from glmspark.speculator.drafter import Drafter, Shared
from glmspark.speculator.shape import DrafterError, Shape
from glmspark.speculator.stitching import pieces, rows_of
from tests.engine.made_up_target import HIDDEN, SETTINGS, SHAPE, VOCAB, counting, write_data, write_target


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    """Matrices this small are not worth waking other threads for."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def data(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_data(tmp_path_factory.mktemp("data") / "states", target)


@pytest.fixture(scope="module")
def trained(data: Dataset, target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "training"
    training.train(data, target, out, SHAPE, SETTINGS, device="cpu")
    return out


# --- the drafter --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [16, None])
def test_a_block_sees_what_it_may_and_nothing_else(target: Path, window: int | None) -> None:
    """States from the anchor on, or before the window, change nothing; those inside do."""
    drafter, shared = Drafter(replace(SHAPE, window=window), 3), store.read_shared(target)
    tokens, states = torch.arange(30)[None], torch.randn(1, 30, 2 * HIDDEN)
    anchor = 24

    def hidden(seen: torch.Tensor, anchors: list[int]) -> torch.Tensor:
        with torch.no_grad():
            block = drafter.blocks(
                shared, seen, tokens, torch.tensor([anchors]), torch.tensor([30]), torch.tensor([0])
            )
        return block.hidden[0, -1]

    before = hidden(states, [anchor])
    for place in range(30):
        other = states.clone()
        other[0, place] += 20
        difference = (hidden(other, [anchor]) - before).abs().amax(-1)
        for step in range(SHAPE.block_size):
            # As vLLM counts: a query at position p sees the keys from p - window + 1 on.
            inside = place < anchor and (window is None or place > anchor + step - window)
            assert (difference[step] > 1e-4) == inside, (place, step)
    torch.testing.assert_close(hidden(states, [5, 12, anchor]), before)  # blocks do not see one another


def test_positions_count_from_the_sequence_s_start(target: Path) -> None:
    """Keys turned by their distance alone: a piece cut from a sequence gives the same as the whole."""
    drafter, shared = Drafter(SHAPE, 3), store.read_shared(target)
    tokens, states = torch.arange(30)[None], torch.randn(1, 30, 2 * HIDDEN)

    def hidden(cut: int) -> torch.Tensor:
        with torch.no_grad():
            return drafter.blocks(
                shared, states[:, cut:], tokens[:, cut:], torch.tensor([[26 - cut]]),
                torch.tensor([30 - cut]), torch.tensor([cut]),
            ).hidden  # fmt: skip

    torch.testing.assert_close(hidden(6), hidden(0), atol=1e-5, rtol=1e-4)


def test_drafts_follow_one_another(target: Path) -> None:
    """Each draft is the best of the block's logits and what usually follows the draft before."""
    drafter, shared = Drafter(SHAPE, 3), store.read_shared(target)
    torch.nn.init.normal_(drafter.markov_head.markov_w2.weight)
    with torch.no_grad():
        block = drafter.blocks(
            shared, torch.randn(1, 9, 2 * HIDDEN), torch.arange(9)[None], torch.tensor([[8]]),
            torch.tensor([9]), torch.tensor([0]),
        )  # fmt: skip
        drafts, confidence = drafter.draft(block, torch.tensor([[8]]))
        before = torch.tensor(8)
        for step in range(SHAPE.block_size):
            logits = block.logits[0, 0, step] + drafter.bias(before)[1]
            before = logits.argmax()
            assert drafts[0, 0, step] == before
    assert ((confidence > 0) & (confidence < 1)).all()


# --- data ---------------------------------------------------------------------------------------------------


def test_a_data_set_is_read_as_it_was_written(data: Dataset, target: Path) -> None:
    wanted, found = counting(target, 80), list(data.sequences())
    assert len(found) == 80
    for one, other in zip(wanted, found, strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert torch.equal(one.states, other.states)
        assert torch.equal(one.last, other.last)
        assert (one.prompt, one.kind) == (other.prompt, other.kind)
    kept, out = list(data.sequences(held_out=False)), list(data.sequences(held_out=True))
    assert (len(kept), len(out)) == (76, 4)
    assert torch.equal(out[0].tokens, wanted[19].tokens)


def test_a_shard_that_was_changed_is_refused(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "dataset.json").write_bytes((data.directory / "dataset.json").read_bytes())
    (tmp_path / data.shards[0]["file"]).write_bytes(b"no tensors")
    with pytest.raises(DrafterError, match="is not the shard"):
        list(Dataset.open(tmp_path).sequences())
    (tmp_path / "dataset.json").write_text("{}")
    with pytest.raises(DrafterError, match="holds no data set"):
        Dataset.open(tmp_path)
    with pytest.raises(DrafterError, match="already"):
        Writer(data.directory, [1], {})


def test_sequences_are_found_in_a_batch() -> None:
    tokens = torch.tensor([5, 6, 7, 8, 5, 6, 9, 0, 0, 6, 7])
    positions = torch.tensor([0, 1, 2, 3, 0, 1, 2, 0, 0, 1, 2])
    assert pieces(positions) == [(0, 4), (4, 7), (7, 8), (8, 11)]
    found = rows_of(tokens, positions, [[5, 6, 9], [5, 6, 7, 8], [5, 6], [6, 7], [5, 6, 9, 0]])
    assert found == [slice(4, 7), slice(0, 4), slice(0, 2), None, None]
    assert pieces(torch.tensor([])) == []


# --- training -----------------------------------------------------------------------------------------------


def test_training_learns_to_count(trained: Path, data: Dataset, target: Path) -> None:
    drafter, shared = drafter_in(trained), store.read_shared(target)
    found = evaluation.evaluate(drafter, shared, data.sequences(held_out=True))
    nothing = evaluation.evaluate(Drafter(SHAPE, 0), shared, data.sequences(held_out=True))
    assert found["all"].per_step > 1.0 > nothing["all"].per_step
    assert found["all"].sequences == 4
    losses = [json.loads(line) for line in (trained / "training.jsonl").read_text().splitlines()]
    assert [row["step"] for row in losses] == [20, 40, 60]
    assert losses[-1]["ce"] < losses[0]["ce"]
    provenance = json.loads((trained / "provenance.json").read_text())
    assert provenance["dataset"] == data.digest


def test_what_was_broken_off_goes_on_the_same(
    trained: Path, data: Dataset, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PowerCutError(Exception):
        pass

    def cut(step: int, _parts: dict[str, float]) -> None:
        if step == 40:
            raise PowerCutError

    # A state is saved after every step; the lights go out at step 40, before its own is.
    with pytest.raises(PowerCutError):
        training.train(data, target, tmp_path, SHAPE, replace(SETTINGS, every=0), device="cpu", progress=cut)
    assert training.resume(tmp_path)["step"] == 39
    training.train(data, target, tmp_path, SHAPE, SETTINGS, device="cpu")
    whole, again = training.resume(trained), training.resume(tmp_path)
    for name, value in whole["drafter"].items():
        torch.testing.assert_close(again["drafter"][name], value)
    assert (tmp_path / "training.jsonl").read_text() == (trained / "training.jsonl").read_text()


def test_what_does_not_belong_together_is_refused(
    trained: Path, data: Dataset, target: Path, tmp_path: Path
) -> None:
    def run(out: Path = tmp_path, shape: Shape = SHAPE, **more: Any) -> None:
        training.train(data, more.pop("target", target), out, shape, replace(SETTINGS, **more), device="cpu")

    with pytest.raises(DrafterError, match="another settings"):
        run(trained, rate=1e-3)
    with pytest.raises(DrafterError, match="another shape"):
        run(trained, replace(SHAPE, layers=1))
    with pytest.raises(DrafterError, match="reads"):
        run(shape=replace(SHAPE, aux_layers=(1,)))
    with pytest.raises(DrafterError, match="tokens x hidden size"):
        run(shape=replace(SHAPE, vocab_size=VOCAB + 1))
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    save_file(load_file(target / "model.safetensors"), other / "model.safetensors")
    with pytest.raises(DrafterError, match="another checkpoint"):
        run(target=other)
    (trained.parent / "broken").mkdir()
    (trained.parent / "broken/state.pt").write_bytes(b"none")
    with pytest.raises(DrafterError, match="not the state"):
        run(trained.parent / "broken")


def test_an_exported_drafter_is_the_one_trained(trained: Path, target: Path, tmp_path: Path) -> None:
    drafter = drafter_in(trained)
    store.write_drafter(drafter, tmp_path / "drafter", "glm", {"from": "here"})
    found = store.read_drafter(tmp_path / "drafter")
    assert found.shape == SHAPE
    for name, value in drafter.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, atol=1e-2, rtol=1e-2)  # bfloat16
    tensors = load_file(tmp_path / "drafter/model.safetensors")
    assert tensors["confidence_head.proj.weight"].dtype == torch.float32
    assert tensors["fc.weight"].dtype == torch.bfloat16
    tensors.pop("fc.weight")
    save_file(tensors, tmp_path / "drafter/model.safetensors")
    with pytest.raises(DrafterError, match="not those") as caught:
        store.read_drafter(tmp_path / "drafter")
    assert "missing fc.weight" in str(caught.value.seen)


def test_fine_tuning_begins_with_a_drafter(
    trained: Path, data: Dataset, target: Path, tmp_path: Path
) -> None:
    store.write_drafter(drafter_in(trained), tmp_path / "drafter", "glm", {})
    found = training.train(
        data, target, tmp_path / "tuned", replace(SHAPE, window=24), replace(SETTINGS, steps=1),
        start=tmp_path / "drafter", device="cpu",
    )  # fmt: skip
    first = json.loads((trained / "training.jsonl").read_text().splitlines()[0])
    assert found["loss"] < first["loss"]
    assert drafter_in(tmp_path / "tuned").shape.window == 24
    with pytest.raises(DrafterError, match="another shape"):
        training.train(
            data, target, tmp_path / "no", replace(SHAPE, layers=1), SETTINGS, start=tmp_path / "drafter"
        )


def test_a_quantised_matrix_is_not_shared(target: Path, tmp_path: Path) -> None:
    tensors = load_file(target / "model.safetensors")
    save_file(
        tensors | {"lm_head.weight": tensors["lm_head.weight"].to(torch.int8)}, tmp_path / "model.safetensors"
    )
    with pytest.raises(DrafterError, match="quantised"):
        store.read_shared(tmp_path)
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(DrafterError, match="no embedding"):
        store.read_shared(tmp_path)


def test_two_ranks_train_one_drafter(data: Dataset, target: Path, tmp_path: Path) -> None:
    """Below torchrun: both take every step together, one writes."""
    code = (
        "import json, sys, torch; from pathlib import Path; from glmspark.speculator import training; "
        "from glmspark.speculator.dataset import Dataset; from glmspark.speculator.shape import Shape; "
        "shape = json.loads(sys.argv[4]); "
        "shape = Shape(**shape | {'aux_layers': tuple(shape['aux_layers'])}); "
        "torch.set_num_threads(1); "
        "training.train(Dataset.open(Path(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3]), shape, "
        "training.Settings(steps=20, tokens=200, anchors=4, warm_up=2), device='cpu')"
    )
    environment = os.environ | {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    said = json.dumps(SHAPE.to_json())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(data.directory), str(target), str(tmp_path / "out"), said],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        _, said = rank.communicate(timeout=120)
        assert rank.returncode == 0, said.decode()[-3000:]
    assert training.resume(tmp_path / "out")["step"] == 20
    provenance = json.loads((tmp_path / "out/provenance.json").read_text())
    assert provenance["trained_with"]["ranks"] == 2


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_losses_are_drawn(trained: Path) -> None:
    assert plot.plot(trained).read_bytes().startswith(b"\x89PNG")


# --- acceptance ---------------------------------------------------------------------------------------------


def test_acceptance_is_counted_as_a_deployment_steps(monkeypatch: pytest.MonkeyPatch, target: Path) -> None:
    """Drafts that are right at known places: the walk goes on behind the target's own token."""
    drafter = Drafter(SHAPE, 0)
    tokens = torch.arange(13)

    def draft(_self: Drafter, block: Any, anchors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        right = anchors[..., None] + torch.arange(1, 5)
        # Behind even tokens two drafts are right and the third is not; behind odd ones all are.
        wrong = (anchors % 2 == 0)[..., None] & (torch.arange(4) == 2)
        return torch.where(wrong, 47, right), torch.full(right.shape, 0.5)

    monkeypatch.setattr(Drafter, "draft", draft)
    sequence = Sequence(tokens, torch.zeros(13, 2 * HIDDEN), torch.zeros(13, HIDDEN), 2, "count")
    shared = Shared(torch.zeros(VOCAB, HIDDEN), torch.zeros(VOCAB, HIDDEN))
    found = evaluation.evaluate(drafter, shared, [sequence])["count"]
    # From token 2: 3 and 4 right, 5 the target's; from 5: four right, 10 the target's; from 10: 11, 12.
    assert (found.steps, found.accepted, found.drafted) == (3, [3, 3, 1, 1], [3, 3, 2, 2])
    assert found.per_step == pytest.approx(8 / 3)
