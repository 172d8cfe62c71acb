"""Weights onto every node of a lab: the chain beside one copy, and beside rsync from the first to all others.

    python bench/spreading.py CLUSTER.YAML [MIB]

Makes a model of random bytes on the first node, measures and removes it. One copy goes by the same relay, so
that the way of passing on is all that differs. rsync runs without SSH (a daemon on each receiving node's
fabric address, whole files): nothing is encrypted, as with --trusted-fabric. One line of JSON; exit code 1
where the chain takes more than 1.25 times one copy, or rsync's fan-out less than 2.5 times the chain.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from glmspark.config.cluster import load_cluster
from glmspark.nodes.doctor import addresses
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.ssh import SshNode
from glmspark.weights.fetch import pythons
from glmspark.weights.spread import Piece, Plan, chain, spread
from glmspark.weights.ways import ways

BAR, BAR_RSYNC = 1.25, 2.5
RSYNC_PORT = 8730
MAKE = """\
import os, sys
os.makedirs(sys.argv[1], exist_ok=True)
with open(sys.argv[1] + "/model.safetensors", "wb") as file:
    for _ in range(int(sys.argv[2])):
        file.write(os.urandom(1 << 20))
"""


async def measure(path: Path, mib: int) -> dict[str, object]:
    cluster = load_cluster(path)
    names = [node.name for node in cluster.nodes]
    first, size = names[0], mib << 20
    directory = cluster.paths.models + "/bench-spreading"
    files = {"model.safetensors": size}
    star = {name: [Piece("model.safetensors", size, None if name == first else first)] for name in names}
    way = ways(cluster, names)
    where = {name: way.addresses[name][first] for name in names[1:]}
    layouts = {
        "one": {name: star[name] for name in names[:2]},
        "chain": chain(way, files),
    }
    found: dict[str, object] = {"mib": mib, "nodes": len(names)}
    async with Fleet(addresses(cluster)) as fleet:
        await fleet.nodes[first].must(
            ["python3", "-c", MAKE, directory, str(mib)], "make a model", timeout=300
        )
        try:
            for trusted in (False, True):
                for layout, pieces in layouts.items():
                    for name in names[1:]:
                        await fleet.nodes[name].must(["rm", "-rf", "--", directory], "clean up")
                    plan = Plan(directory, pieces, way.addresses, trusted=trusted)
                    done = await spread(fleet, plan, pythons=pythons(cluster))
                    word = layout + ("_trusted" if trusted else "")
                    found[word] = round(done.seconds, 2)
                    found[word + "_cpu_s_per_gb"] = {
                        name: round(one.cpu / (size / 1e9), 2) for name, one in done.nodes.items()
                    }
            found["rsync_one"] = await rsync(fleet, names[:2], directory, where)
            found["rsync_fan_out"] = await rsync(fleet, names, directory, where)
        finally:
            await fleet.each(lambda node: node.must(["rm", "-rf", "--", directory], "clean up"))
    for word in ("", "_trusted"):
        one, chained = (float(str(found[key + word])) for key in ("one", "chain"))
        found["chain_to_one" + word] = round(chained / one, 3)
        found["rsync_to_chain" + word] = round(float(str(found["rsync_fan_out"])) / chained, 3)
    return found


async def rsync(fleet: Fleet, names: list[str], directory: str, where: Mapping[str, str]) -> float:
    """Seconds until all nodes have the first one's model from it, each by an rsync of its own, and synced."""
    first, *others = names
    daemons, port = [], RSYNC_PORT + len(names)  # the last one's may not be free yet
    config = f"{directory}.rsyncd"
    for name in others:
        node = fleet.nodes[name]
        assert isinstance(node, SshNode)
        await node.must(["rm", "-rf", "--", directory], "clean up")
        await node.must(["mkdir", "-p", "--", directory], "make a place")
        text = f"use chroot = no\n[model]\npath = {directory}\nread only = no\n"
        await node.put(text.encode(), config)
        argv = ["rsync", "--daemon", "--no-detach", f"--config={config}"]
        daemons.append(await node.open([*argv, f"--address={where[name]}", f"--port={port}"]))
    await asyncio.sleep(1)
    begun = time.monotonic()

    async def copy(name: str) -> None:
        target = f"rsync://{where[name]}:{port}/model/"
        argv = ["rsync", "--whole-file", f"{directory}/model.safetensors", target]
        await fleet.nodes[first].must(argv, "rsync", timeout=600)
        await fleet.nodes[name].must(["sync", "--", f"{directory}/model.safetensors"], "sync", timeout=300)

    try:
        await asyncio.gather(*map(copy, others))
        return round(time.monotonic() - begun, 2)
    finally:
        for name, daemon in zip(others, daemons, strict=True):
            daemon.terminate()
            await fleet.nodes[name].must(["rm", "-f", "--", config], "clean up")


def main() -> int:
    found = asyncio.run(measure(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1024))
    print(json.dumps(found))
    slow = float(str(found["chain_to_one"])) > BAR or float(str(found["rsync_to_chain"])) < BAR_RSYNC
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
