"""Ranks stand on the nodes that the plan names, in its order."""

import pytest

from glmspark.engine.addresses import AddressError
from glmspark.engine.fabric import FABRIC, Fabric
from glmspark.engine.patches.ray_nodes import in_plan_order

PLAN = Fabric.from_environment({FABRIC: "198.18.0.1@fab0,198.18.0.3@fab0,198.18.0.2@fab0"})


def test_the_plans_order_counts_and_a_nodes_ranks_stay_together() -> None:
    assert PLAN is not None
    bundles = [
        (0, "b", "198.18.0.2"),
        (1, "a", "198.18.0.1"),
        (2, "c", "198.18.0.3"),
        (3, "a", "198.18.0.1"),
    ]
    assert [number for number, _, _ in in_plan_order(bundles, PLAN)] == [1, 3, 2, 0]


def test_a_node_that_is_not_in_the_plan() -> None:
    assert PLAN is not None
    with pytest.raises(AddressError, match=r"placed a worker on 198.18.0.9; .* has 198.18.0.1, 198.18.0.3"):
        in_plan_order([(0, "x", "198.18.0.9")], PLAN)
