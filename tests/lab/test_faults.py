"""A fixed sample of faults, of every kind, for one deployment with real vLLM that comes back each time."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.lab.fault_kinds import KINDS, Kind
from tests.lab.fault_site import Site
from tests.lab.faults import make_fault
from tests.lab.soak import deployed
from tests.lab.virtual import VirtualSparks

pytestmark = pytest.mark.timeout(600)

SEED = 6
LEFT_OUT = ("kill a worker", "freeze a worker")
"""Each restart takes its time: `make soak` has these, too."""


def sample() -> list[tuple[Kind, str]]:
    """Each of the kinds on one node, and those that take but a moment on both."""
    chance = random.Random(SEED)
    found = []
    for kind in (one for one in KINDS if one.name not in LEFT_OUT):
        short = kind.name in ("kill logins", "kill the guard")
        found += [(kind, node) for node in (kind.nodes if short else [chance.choice(kind.nodes)])]
    return chance.sample(found, len(found))


@pytest.fixture(scope="module")
def site(lab: VirtualSparks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with deployed(lab, tmp_path_factory.mktemp("faults"), "faulty") as found, found.busy():
        yield found


@pytest.mark.parametrize(("kind", "node"), sample(), ids=lambda one: getattr(one, "name", one))
def test_a_fault_is_detected_named_and_survived(site: Site, kind: Kind, node: str) -> None:
    found = make_fault(site, kind, node, number=0, seed=SEED)
    print(found)
    assert found.right, found
    assert found.named, found
