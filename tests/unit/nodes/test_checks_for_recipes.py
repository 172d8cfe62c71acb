"""What a recipe needs, and what ranks find where they run, held against two healthy Sparks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from glmspark.config import load_recipe
from glmspark.nodes.checks import Expected, State
from glmspark.nodes.checks.everything import judge
from glmspark.nodes.doctor import expected_by
from glmspark.nodes.facts import disks
from glmspark.nodes.facts.disks import DISKS, Disk
from glmspark.nodes.facts.inside import inside
from glmspark.nodes.facts.network import LINKS, Link
from glmspark.nodes.facts.nvidia import GPUS
from glmspark.nodes.facts.places import Place
from tests.unit.nodes.sparks import EXPECTED, GIB, INSIDE, look
from tests.unit.nodes.test_checks import bad, found_inside

SLOW, BLOCKED = State.SLOW, State.BLOCKED


def needing(name: str, **changes: Any) -> Expected:
    """What a shipped recipe expects of the two Sparks."""
    return replace(
        expected_by(load_recipe(name), EXPECTED), **{"memory": 90 * GIB, "weights": None} | changes
    )


def test_a_recipe_that_fits_two_sparks_says_so() -> None:
    seen = look(expected=needing("glm-5.3-flash-nvfp4-2x-mtp"))
    assert bad(seen) == []
    found = [one.evidence for one in judge(seen) if one.check in ("recipe", "recipe's link")]
    assert found == ["glm-5.3-flash-nvfp4-2x-mtp: 2 of 2 nodes are there", "200 Gbit/s", "200 Gbit/s"]


def test_what_a_recipe_needs_and_does_not_find() -> None:
    (found,) = bad(look(expected=needing("glm-5.2-4x-mtp")))
    assert (found.check, found.state, found.evidence) == (
        "recipe",
        BLOCKED,
        "glm-5.2-4x-mtp needs 4 nodes, there are 2",
    )
    two = needing("glm-5.3-flash-nvfp4-2x-mtp")
    links = tuple(
        Link(name, 25000, wireless=False, device=place)
        for name, place in (("enp1s0f0np0", "0000:01:00.0"), ("enP2p1s0f0np0", "0002:01:00.0"))
    )
    (slow, _) = bad(look({LINKS: links}, both=True, expected=two))
    assert (slow.check, slow.state) == ("recipe's link", SLOW)
    assert slow.evidence == "25 Gbit/s, glm-5.3-flash-nvfp4-2x-mtp wants 100"


def test_weights_that_are_there_need_no_room() -> None:
    expected = replace(EXPECTED, weights=160 * GIB, model="/models/glm")
    little = {DISKS: (Disk("d", "ext4", 1000 * GIB, 100 * GIB, "/"),)}
    (found,) = bad(look(little, expected=expected))
    assert (found.check, found.state) == ("disk", BLOCKED)
    assert bad(look({**little, disks.stored("/models/glm"): 158 * GIB}, expected=expected)) == []


def test_a_recipe_for_gpus_on_nodes_without() -> None:
    expected = needing("glm-5.3-flash-nvfp4-2x-mtp")
    found = bad(look({GPUS: ValueError("nvidia-smi is not installed")}, expected=expected))
    assert ("recipe", "spark2", BLOCKED) in [(one.check, one.node, one.state) for one in found]


def test_rays_absence_counts_for_recipes_that_use_it() -> None:
    changes = {INSIDE: found_inside(ray="")}
    assert bad(look(changes)) == []
    (found,) = bad(look(changes, expected=replace(EXPECTED, backend="ray")))
    assert (found.check, found.state) == ("engine", BLOCKED)
    assert "no Ray, which the recipe's backend is" in found.evidence


def test_an_environment_is_looked_into_like_an_image() -> None:
    place = Place(venv="/v")
    expected = replace(EXPECTED, runtime="venv", image=None, venv="/v")
    assert bad(look({inside(place): found_inside()}, both=True, expected=expected)) == []
    (found,) = bad(look({inside(place): found_inside(vllm="")}, expected=expected))
    assert found.evidence == "the environment /v has no vLLM"
