"""What one node says becomes another's input, through this machine, over real SSH."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from glmspark.nodes import streams
from glmspark.nodes.doctor import addresses
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.ssh import SshNode
from glmspark.nodes.transport import NodeError
from tests.lab.virtual import VirtualSparks

NODES = ("spark1", "spark2", "spark3")


def pour(lab: VirtualSparks, give: Sequence[str], take: Sequence[str], told: list[int] | None = None) -> int:
    """From spark1 to spark2 and spark3."""

    async def go() -> int:
        known = addresses(lab.cluster)
        async with Fleet({name: known[name] for name in NODES}) as fleet:
            nodes = [node for node in fleet.nodes.values() if isinstance(node, SshNode)]
            assert len(nodes) == len(NODES)
            tell = (told if told is not None else []).append
            return await streams.pour(nodes[0], give, nodes[1:], take, step="pour", finish=5, told=tell)

    return asyncio.run(go())


def refused(lab: VirtualSparks, give: Sequence[str], take: Sequence[str]) -> NodeError:
    with pytest.raises(NodeError) as caught:
        pour(lab, give, take)
    assert caught.value.step == "pour"
    return caught.value


def test_every_byte_goes_over(lab: VirtualSparks) -> None:
    lab.shell("spark1", "sh", "-c", "head -c 20000003 /dev/urandom > /tmp/poured")
    told: list[int] = []
    assert pour(lab, ["cat", "/tmp/poured"], ["sh", "-c", "cat > /tmp/arrived"], told) == 20000003
    assert told[-1] == 20000003
    sums = [lab.shell(node, "sha256sum", f"/tmp/{name}").split()[0] for node, name in
            (("spark1", "poured"), ("spark2", "arrived"), ("spark3", "arrived"))]  # fmt: skip
    assert sums[0] == sums[1] == sums[2]
    lab.shell("spark1", "rm", "/tmp/poured")
    for node in NODES[1:]:
        lab.shell(node, "rm", "/tmp/arrived")


def test_the_end_that_fails_is_named(lab: VirtualSparks) -> None:
    first = refused(lab, ["sh", "-c", "echo half; echo no image >&2; exit 3"], ["cat"])
    assert (first.host, first.seen) == ("spark1", "no image")
    assert "left with 3" in first.message
    second = refused(lab, ["echo", "all"], ["sh", "-c", "cat > /dev/null; echo no room >&2; exit 4"])
    assert (second.host, second.seen) == ("spark2", "no room")
    one = ["sh", "-c", "cat > /dev/null; [ $(hostname) = spark2 ] || { echo no room >&2; exit 4; }"]
    third = refused(lab, ["echo", "all"], one)
    assert (third.host, third.seen) == ("spark3", "no room")
    gone = refused(
        lab, ["cat", "/dev/zero"], ["sh", "-c", "head -c 100000 > /dev/null; echo full >&2; exit 5"]
    )
    assert gone.host == "spark2"
    assert "full" in str(gone.seen)


def test_what_never_comes_to_an_end_is_given_up(lab: VirtualSparks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SILENCE", 1.0)
    silent = refused(lab, ["sleep", "4713"], ["cat"])
    assert "nothing went over for 1 s" in silent.message
    for _ in range(50):
        if lab.code("spark1", "pgrep", "-f", "^sleep 4713") == 1:
            return
        time.sleep(0.1)
    raise AssertionError("the command is still there")
