"""Weights onto every node of a lab: the chain beside one copy and beside a fan-out from the first node.

    python bench/spreading.py CLUSTER.YAML [MIB]

Makes a model of random bytes on the first node, measures and removes it. The copies are made by the same
relay, so that the way of passing on is all that differs. One line of JSON; exit code 1 where the chain takes
more than 1.25 times one copy.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from glmspark.config.cluster import load_cluster
from glmspark.nodes.doctor import addresses
from glmspark.nodes.fleet import Fleet
from glmspark.weights.fetch import fabric_addresses, pythons
from glmspark.weights.spread import Piece, Plan, chain, spread

BAR = 1.25
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
    layouts = {
        "one": {name: star[name] for name in names[:2]},
        "chain": chain(names, files),
        "fan_out": star,
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
                    plan = Plan(directory, pieces, fabric_addresses(cluster), trusted=trusted)
                    done = await spread(fleet, plan, pythons=pythons(cluster))
                    word = layout + ("_trusted" if trusted else "")
                    found[word] = round(done.seconds, 2)
                    found[word + "_cpu_s_per_gb"] = {
                        name: round(one.cpu / (size / 1e9), 2) for name, one in done.nodes.items()
                    }
        finally:
            await fleet.each(lambda node: node.must(["rm", "-rf", "--", directory], "clean up"))
    for word in ("", "_trusted"):
        one, chained, star_s = (float(str(found[key + word])) for key in ("one", "chain", "fan_out"))
        found["chain_to_one" + word] = round(chained / one, 3)
        found["fan_out_to_chain" + word] = round(star_s / chained, 3)
    return found


def main() -> int:
    found = asyncio.run(measure(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1024))
    print(json.dumps(found))
    return int(float(str(found["chain_to_one"])) > BAR)


if __name__ == "__main__":
    sys.exit(main())
