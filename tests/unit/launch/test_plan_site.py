"""A cluster as the site of a plan: which nodes are asked, and what links them. The nodes' answers are made
up: what they are read from has tests of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glmspark.config import load_recipe
from glmspark.config.cluster import load_cluster
from glmspark.launch import plan_site
from glmspark.nodes.facts.account import BOARD
from glmspark.nodes.facts.memory_detail import MEMORY_DETAIL
from glmspark.nodes.facts.network import LINKS
from glmspark.nodes.facts.nvidia import GPUS
from glmspark.nodes.transport import NodeError
from glmspark.plan.errors import PlanError

GIB = 2**30
FILE = "cluster: 1\nruntime: {image: 'i:1'}\nnodes:\n" + "".join(
    f"  - {{name: spark{n}, address: 192.0.2.{n}, "
    f"fabric: [{{interface: fab0, address: 10.0.0.{n}/24, hca: rocep1s0f0}}]}}\n"
    for n in range(1, 6)
)


class Answers(dict[Any, Any]):
    def problem(self, fact: Any) -> str:
        return "denied"


class Fleet:
    """Stands where SSH would: every node answers, but those in `away` and `without` (a GPU)."""

    away: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def __init__(self, addresses: dict[str, Any]) -> None:
        self.names = list(addresses)
        self.lost = {name: NodeError("no answer", host=name) for name in self.names if name in self.away}

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def each(self, _: Callable[[Any], Awaitable[Any]]) -> dict[str, Answers]:
        memory = SimpleNamespace(total=121 * GIB, available=117 * GIB)
        link = SimpleNamespace(name="fab0", speed=200_000)
        return {
            name: Answers(
                {
                    MEMORY_DETAIL: memory,
                    BOARD: name,
                    GPUS: () if name in self.without else ("GB10",),
                    LINKS: (link,),
                }
            )
            for name in self.names
        }


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> type[Fleet]:
    made = type("Made", (Fleet,), {})
    monkeypatch.setattr(plan_site, "Fleet", made)
    return made


def site(tmp_path: Path, count: int | None) -> Any:
    file = tmp_path / "cluster.yaml"
    file.write_text(FILE)
    return plan_site.cluster_site(load_cluster(file), load_recipe("glm-5.2-4x-mtp"), count)


def test_nodes_that_no_rank_goes_to_need_not_answer(tmp_path: Path, fleet: Any) -> None:
    fleet.away = ("spark5",)
    found = site(tmp_path, 4)
    assert [seat.name for seat in found.seats] == ["spark1", "spark2", "spark3", "spark4"]
    assert (found.platform, found.measured) == ("cuda", True)
    assert (found.link.kind, found.link.gbit) == ("roce", 200)
    with pytest.raises(NodeError, match="no answer"):
        site(tmp_path, None)


def test_a_node_without_a_gpu_is_named_where_a_rank_goes_to_it(tmp_path: Path, fleet: Any) -> None:
    fleet.without = ("spark3",)
    with pytest.raises(PlanError, match="none answers on spark3"):
        site(tmp_path, 4)
    assert len(site(tmp_path, 2).seats) == 2


def test_more_ranks_than_nodes_are_not_this_rooms_to_refuse(tmp_path: Path, fleet: Any) -> None:
    assert len(site(tmp_path, 8).seats) == 5
