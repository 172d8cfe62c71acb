"""Checkpoints of headers in the published shapes: what inspect says of them beside what their makers say."""

import gc
from pathlib import Path

import pytest

from glmspark.models.families import known_architecture
from glmspark.models.files import LocalFiles
from glmspark.models.inspection import Inspection, inspect
from glmspark.weights.holdings import holdings
from tools.headers import CHECKPOINTS, write

GIB = 2**30


@pytest.fixture
def look(tmp_path_factory: pytest.TempPathFactory):
    def made(name: str) -> Inspection:
        return inspect(LocalFiles(write(name, tmp_path_factory.mktemp("headers") / name)))

    gc.disable()  # of the hundreds of thousands of objects none goes before the test's end
    yield made
    gc.enable()


def declared(name: str) -> int:
    return sum(known_architecture(CHECKPOINTS[name][0], "config.json").parameters.values())


def test_glm_5_2_as_released():
    """753 B parameters, 743.4 B of them in the trunk and 9.95 B in the MTP layer; 1,507 GB in bf16."""
    shape = known_architecture(CHECKPOINTS["glm-5.2-bf16"][0], "config.json")
    assert shape.trunk_parameters == pytest.approx(743.4e9, rel=0.001)
    assert shape.parameters["mtp"] == pytest.approx(9.95e9, rel=0.001)
    assert declared("glm-5.2-bf16") == pytest.approx(753.3e9, rel=0.001)
    assert shape.active_parameters == pytest.approx(40.1e9, rel=0.01)
    assert sum(layer.indexer == "full" for layer in shape.layers) == 21
    assert declared("glm-5.2-bf16") * 2 == pytest.approx(1507e9, rel=0.001)


def test_glm_5_2_int4_int8mix(look):
    """177,569 tensors of 405,459,090,304 bytes; about 98.07 GiB a rank at TP4 with MTP."""
    found = look("glm-5.2-int4-int8mix")
    assert found.problems == ()
    assert (len(found.content.tensors), found.nbytes) == (177_569, 405_459_090_304)
    assert found.parameters == declared("glm-5.2-bf16")
    assert found.classes["routed_experts"].schemes.keys() == {"int4 g128"}
    assert found.classes["mtp"].schemes.keys() >= {"int8 channel"}
    ranks = holdings(found, tp=4)
    assert len({(one.tensors, one.nbytes) for one in ranks}) == 1
    assert ranks[0].nbytes / GIB == pytest.approx(98.07, rel=0.03)


def test_glm_5_3_flash(look):
    """320 to 321 B parameters, 18 B active with the embedding and tower; 181.3 GiB with NVFP4 experts."""
    found = look("glm-5.3-flash-nvfp4")
    assert found.problems == ()
    assert round(found.parameters / 1e9) == 321
    assert found.parameters == declared("glm-5.3-flash-nvfp4")
    share = found.architecture.parameters
    assert share["routed_experts"] == pytest.approx(304.4e9, rel=0.001)
    assert share["shared_experts"] == pytest.approx(1.06e9, rel=0.01)
    assert share["vision"] * 2 / GIB == pytest.approx(1.05, rel=0.01)
    assert found.nbytes / GIB == pytest.approx(181.3, rel=0.01)
    assert sum(layer.linear for layer in found.architecture.layers) == 34


def test_reap_469b(look):
    """156 of 256 experts in NVFP4, no MTP weights: 287 GB.

    The name's 469 B is no count of what is stored, which follows from GLM-5.2's own and from what was taken
    out; see docs/inspect.md.
    """
    found = look("glm-5.2-reap-469b-nvfp4")
    assert [problem.rule for problem in found.problems] == ["mtp-absent"]
    assert found.nbytes == pytest.approx(287e9, rel=0.01)
    shape = found.architecture
    # The released trunk (743.4 B) without 100 experts and router rows in each of 75 layers, and with indexers
    # on the 57 layers that share another's there.
    released = known_architecture(CHECKPOINTS["glm-5.2-bf16"][0], "config.json")
    sharing = sum(layer.indexer != "full" for layer in released.layers)
    indexer = released.parameters["indexer"] // (len(released.layers) - sharing)
    expert = 3 * shape.hidden_size * shape.moe_intermediate_size
    taken_out = 75 * 100 * (expert + shape.hidden_size + 1)
    assert found.parameters == pytest.approx(743.4e9 - taken_out + sharing * indexer, rel=0.001)
    assert found.parameters == released.trunk_parameters - taken_out + sharing * indexer
    copies = 2 * shape.vocab_size * shape.hidden_size
    assert declared("glm-5.2-reap-469b-nvfp4") + copies == pytest.approx(469e9, rel=0.001)
    assert found.parameters == shape.trunk_parameters
    stages = holdings(found, pp=3)
    assert [one.layers for one in stages] == [(0, 26), (26, 52), (52, 78)]
    assert max(one.nbytes for one in stages) <= 0.4 * found.nbytes
    split, spread = holdings(found, tp=4), holdings(found, tp=4, ep=True)
    assert sum(one.nbytes for one in spread) == pytest.approx(sum(one.nbytes for one in split), rel=0.001)
    assert all(one.tensors < 0.3 * len(found.content.tensors) for one in spread)
    # Holes take no room.
    assert sum(one.stat().st_blocks for one in Path(found.where).iterdir()) * 512 < 100e6
