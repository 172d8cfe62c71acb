"""The checkpoint that comes with glmspark."""

import pytest

from glmspark.config import load_recipe
from glmspark.models import Checkpoint, inspect_checkpoint, locate
from glmspark.plan import plan_local
from tests.unit.plan.plans import BOX, ROOMY


@pytest.fixture(scope="module")
def tiny() -> Checkpoint:
    return inspect_checkpoint(locate(load_recipe("glm-tiny").model.source))


def test_it_has_every_weight_of_its_architecture_and_no_other(tiny):
    assert tiny.has_mtp
    assert tiny.has_indexer
    assert all(tensor.spec is not None for tensor in tiny.tensors)
    assert tiny.parameters == sum(tiny.architecture.parameters.values())


def test_its_size(tiny):
    assert tiny.parameters <= 6_000_000
    assert sum(path.stat().st_size for path in tiny.directory.iterdir()) <= 12 * 2**20


def test_every_layout_that_is_promised_can_be_planned(tiny):
    recipe = load_recipe("glm-tiny")
    assert plan_local(recipe, tiny, facts=BOX).world == 2
    for tp in (1, 2, 4):
        for pp in (1, 2, 3, 4):
            assert plan_local(recipe, tiny, facts=ROOMY, tp=tp, pp=pp).world == tp * pp
