"""Agents on virtual Sparks: what starts, what is told, and that whatever ends one rank ends all."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from glmspark.launch.agents import Agents, Event
from glmspark.nodes.transport import NodeError
from tests.lab.ranks_on_nodes import HOME, NODES, Deployment, all_ended, all_met, ends, gather, until
from tests.lab.virtual import VirtualSparks


def test_containers_start_tell_and_stop(lab_with_image: VirtualSparks) -> None:
    one = Deployment(
        lab_with_image, "boxes", containers=True, argv=("sh", "-c", "while sleep 0.2; do echo $WHO; done")
    )

    async def run() -> None:
        async with one.running() as agents:
            events = await gather(agents, all_met)
            for event in events:
                if event.kind == "log":
                    assert event.data == {"rank": NODES.index(event.node), "line": f"rank{event.rank}"}
            states = await agents.status()
            assert [states[node]["state"] for node in NODES] == ["running"] * 3
            assert all(states[node]["memory"] > 0 for node in NODES)
            with pytest.raises(NodeError, match="already runs there"):
                await agents.start(one.specs())

    asyncio.run(run())


def test_containers_start_again_as_a_whole(lab_with_image: VirtualSparks) -> None:
    """Without an API there is nothing to ask: it is back when all ranks have started."""
    script = ("sh", "-c", "while sleep 0.2; do echo $WHO; done")
    one = Deployment(
        lab_with_image, "again", containers=True, argv=script, watching={"times": 1, "minutes": 30.0}
    )

    async def run() -> None:
        async with one.running() as agents:
            await gather(agents, all_met)
            await agents.ready({"state": "ready"})
            before = {node: one.state(node)["container"] for node in NODES}
            one.shell("spark2", "docker", "kill", before["spark2"])
            await until(30, lambda: all(len(one.state(node)["restarts"]) == 1 for node in NODES))
            after = {node: one.state(node) for node in NODES}
            for node, state in after.items():
                assert state["state"] == "ready"
                assert state["container"] not in (None, before[node])
                assert (state["restarts"][0]["cause"]["rank"], state["reason"]) == (1, None)
            one.shell("spark3", "docker", "kill", after["spark3"]["container"])
            await until(30, lambda: all(one.state(node)["state"] == "failed" for node in NODES))
            assert "restarted once within 30 min, so it stays down" in one.state("spark1")["reason"]["what"]

    asyncio.run(run())


def test_a_rank_that_is_killed_ends_all(lab: VirtualSparks) -> None:
    one = Deployment(lab, "killed")

    async def run() -> None:
        async with one.running() as agents:
            await gather(agents, all_met)
            one.shell("spark2", "kill", "-9", one.main("spark2"))
            begin = time.monotonic()
            events = await gather(agents, all_ended)
            assert time.monotonic() - begin < 10
            for node, state in ends(events).items():
                reason = state["reason"]
                assert (state["state"], reason["rank"], reason["node"]) == ("failed", 1, "spark2"), node
                assert reason["signal"] == "SIGKILL"
                assert "rank1 " in reason["seen"]
            assert one.traces() == {}

    asyncio.run(run())


def test_an_agent_that_is_killed_leaves_no_rank_and_ends_all(lab: VirtualSparks) -> None:
    one = Deployment(lab, "orphan")

    async def run() -> None:
        async with one.running() as agents:
            await gather(agents, all_met)
            agent = str(one.state("spark3")["agent"][0])
            one.shell("spark3", "kill", "-9", agent)
            begin = time.monotonic()
            events = await gather(agents, all_ended)
            assert time.monotonic() - begin < 10
            found = ends(events)
            assert "agent ended unexpectedly: rank 2 on spark3" in found["spark3"]["reason"]["what"]
            for node in ("spark1", "spark2"):
                reason = found[node]["reason"]
                assert (reason["rank"], reason["node"]) == (2, "spark3")
                assert "closed its connection" in reason["what"]

    asyncio.run(run())


def test_a_cut_fabric_ends_all_within_the_silence(lab: VirtualSparks) -> None:
    one = Deployment(lab, "cut")

    async def run() -> None:
        async with one.running() as agents:
            await gather(agents, all_met)
            await agents.ready()  # so that it is the watch and not the leash
            lab.lab("cut", "spark3:enp1s0f0np0")
            begin = time.monotonic()
            try:
                await until(12, lambda: all(one.state(node)["state"] == "failed" for node in NODES))
                assert time.monotonic() - begin > 5
            finally:
                lab.lab("mend", "spark3:enp1s0f0np0")
        for node in NODES:
            reason = one.state(node)["reason"]
            assert "was silent for 8 s" in reason["what"]
            assert (reason["node"] == "spark3") == (node != "spark3")

    asyncio.run(run())


CONTROL = """\
import asyncio, json, sys
from tests.lab.ranks_on_nodes import Deployment, all_met
from tests.lab.virtual import VirtualSparks
from pathlib import Path

async def run():
    one = Deployment(VirtualSparks(Path(sys.argv[1])), sys.argv[2])
    async with one.fleet() as agents:
        await agents.start(one.specs())
        events = []
        async for event in agents.follow():
            events.append(event)
            if all_met(events):
                if sys.argv[3] == "ready":
                    await agents.ready({"proven": True})
                print("met", flush=True)
                events = []

asyncio.run(run())
"""


@contextlib.contextmanager
def control(one: Deployment, until_what: str) -> Iterator[subprocess.Popen[str]]:
    """A control machine's process that has started it, and follows it with the leash in its hand."""
    words = [sys.executable, "-c", CONTROL, str(one.sparks.state), one.name, until_what]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "met\n"
            yield process
        finally:
            process.kill()


def test_a_control_machine_that_goes_before_ready_ends_all(lab: VirtualSparks) -> None:
    one = Deployment(lab, "leash")
    with control(one, "met") as process:
        process.kill()
        begin = time.monotonic()
        asyncio.run(until(12, lambda: all(one.state(node)["state"] == "failed" for node in NODES)))
        assert time.monotonic() - begin > 3
    reasons = [one.state(node)["reason"]["what"] for node in NODES]
    assert any("closed its connection before the deployment was ready" in what for what in reasons)
    assert one.traces() == {}


def test_a_proven_deployment_stays_without_control_machine_and_wifi(lab: VirtualSparks) -> None:
    one = Deployment(lab, "proven")
    try:
        with control(one, "ready") as process:
            process.kill()
            lab.lab("cut", "wifi")
            time.sleep(9)  # longer than the leash after a closed connection, and than the watch's silence
            assert [one.state(node)["state"] for node in NODES] == ["ready"] * 3
            assert (
                one.shell("spark2", "cat", f"{HOME}/proven/record.json").replace("\n", "")
                == '{ "proven": true}'
            )
    finally:
        lab.lab("mend", "wifi")

        async def end() -> None:
            async with one.fleet(["spark2"]) as agents:  # one node is enough: the others are told
                assert (await agents.stop())["spark2"].ending == "stopped"

        asyncio.run(end())
    asyncio.run(until(5, lambda: all(one.state(node)["state"] == "stopped" for node in NODES)))
    assert [one.state(node)["reason"] for node in NODES] == [None] * 3
    assert one.traces() == {}


def test_a_broken_connection_is_opened_again_without_loss(lab: VirtualSparks) -> None:
    one = Deployment(lab, "broken")

    async def run() -> None:
        async with one.running() as agents:
            events: list[Event] = []
            cut_at: int | None = None
            async for event in agents.follow():
                events.append(event)
                if cut_at is None and all_met(events):
                    sessions = one.shell("spark2", "pgrep", "-f", "^sshd: spark@")
                    one.shell("spark2", "kill", "-9", *sessions.split())
                    cut_at = len(events)
                kinds = [e.kind for e in events if e.node == "spark2"]
                if cut_at is not None and "back" in kinds and "log" in kinds[kinds.index("back") + 5 :]:
                    break
            assert [e.kind for e in events if e.kind in ("lost", "back")] == ["lost", "back"]
            numbers = [
                int(e.data["line"].split()[1]) for e in events if e.node == "spark2" and e.kind == "log"
            ]
            assert numbers == list(range(len(numbers)))
            assert {state["state"] for state in (await agents.status()).values() if state} == {"running"}

    asyncio.run(run())


def test_a_full_disk_names_the_node_and_starts_nothing(lab: VirtualSparks) -> None:
    one = Deployment(lab, "full")
    state = "/home/spark/.local/state/glmspark"
    one.shell("spark2", "sh", "-c", f"mkdir -p {state} && mount -t tmpfs -o size=512k,mode=777 none {state}")
    try:

        async def refused() -> None:
            async with one.fleet() as agents:
                one.shell("spark2", "sh", "-c", f"head -c 1M /dev/zero > {state}/filler; true")
                with pytest.raises(NodeError) as caught:
                    await agents.start(one.specs())
                assert caught.value.host == "spark2"
                assert "No space left on device" in str(caught.value) + str(caught.value.seen)
                assert one.traces() == {}
                one.shell("spark2", "rm", f"{state}/filler")

        async def goes_on() -> None:
            async with one.running() as agents:
                await gather(agents, all_met)
                one.shell("spark2", "sh", "-c", f"head -c 1M /dev/zero > {state}/filler; true")
                await asyncio.sleep(2)
                states = await agents.status()
                assert states["spark2"] is not None
                assert (states["spark2"]["state"], states["spark2"]["alive"]) == ("running", True)
                one.shell("spark1", "kill", "-9", one.main("spark1"))  # told in spite of the full disk
                assert ends(await gather(agents, all_ended))["spark2"]["reason"]["rank"] == 0
                one.shell("spark2", "rm", f"{state}/filler")

        asyncio.run(refused())
        asyncio.run(goes_on())
    finally:
        one.shell("spark2", "umount", "-l", state)


def test_what_one_node_cannot_start_is_started_nowhere(lab_with_image: VirtualSparks) -> None:
    one = Deployment(lab_with_image, "nowhere", containers=True, argv=("sleep", "1000"))

    async def run() -> None:
        async with one.fleet() as agents:
            specs = one.specs()
            specs["spark2"]["argv"] = [
                w.replace("glmspark-lab:base", "none:1") for w in specs["spark2"]["argv"]
            ]
            with pytest.raises(NodeError, match="docker run left with 125") as caught:
                await agents.start(specs)
            assert caught.value.host == "spark2"
            assert "none:1" in str(caught.value.seen)
            assert one.traces() == {}
            specs = one.specs()
            with one.port_taken(), pytest.raises(NodeError, match="cannot listen") as caught:
                await agents.start(specs)
            assert caught.value.host == "spark1"
            assert one.traces() == {}
            assert {found.ending for found in (await agents.stop()).values()} == {"nothing to stop"}

    asyncio.run(run())


def test_clean_removes_what_nobody_answers_for_and_nothing_else(lab_with_image: VirtualSparks) -> None:
    one = Deployment(lab_with_image, "left", containers=True, argv=("sleep", "1000"))
    stranger = (
        "docker",
        "run",
        "-d",
        "--network",
        "host",
        "--name",
        "stranger",
        "glmspark-lab:base",
        "sleep",
        "99",
    )

    async def run() -> None:
        async with one.running() as agents:
            one.shell("spark1", *stranger)
            state = one.state("spark1")
            reaper = one.shell("spark1", "pgrep", "-f", "agent.pyz reap")
            one.shell("spark1", "kill", "-9", reaper, str(state["agent"][0]))
            await until(5, lambda: one.state("spark2")["state"] == "failed")
            states = await agents.status()
            assert states["spark1"] is not None
            assert (states["spark1"]["state"], states["spark1"]["alive"]) == ("lost", False)
            every = Agents(agents.fleet)
            would = (await every.clean(dry_run=True))["spark1"]
            assert not isinstance(would, NodeError)
            assert (would["containers"], would["files"]) == (
                [state["container"][:12]],
                ["/tmp/glmspark-left"],
            )
            done = (await every.clean())["spark1"]
            assert not isinstance(done, NodeError)
            assert (done["containers"], done["stubborn"]) == ([state["container"][:12]], [])
            assert one.traces() == {}
            assert one.shell("spark1", "docker", "ps", "--format", "{{.Names}}") == "stranger"

    try:
        asyncio.run(run())
    finally:
        one.shell("spark1", "docker", "rm", "-f", "stranger")
