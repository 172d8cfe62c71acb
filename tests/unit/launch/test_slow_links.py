"""A link slower than the recipe says it needs is told before a start, and does not keep from it."""

from __future__ import annotations

from glmspark.launch.cluster_judge import slow_links
from glmspark.nodes.facts.network import LINKS, Link
from tests.unit.nodes.sparks import look
from tests.unit.nodes.test_checks_for_recipes import needing


def test_it_is_told_for_each_node() -> None:
    links = tuple(
        Link(name, 25000, wireless=False, device=place)
        for name, place in (("enp1s0f0np0", "0000:01:00.0"), ("enP2p1s0f0np0", "0002:01:00.0"))
    )
    two = needing("glm-5.3-flash-nvfp4-2x-mtp")
    found = slow_links(look({LINKS: links}, both=True, expected=two))
    assert [one.split(";")[0] for one in found] == [
        f"{node}: recipe's link: 25 Gbit/s, glm-5.3-flash-nvfp4-2x-mtp wants 100"
        for node in ("spark1", "spark2")
    ]
    assert all("ConnectX-7" in one for one in found)
    assert slow_links(look(expected=two)) == ()
