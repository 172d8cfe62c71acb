"""`make soak`: random faults for a deployment on a lab of its own, and healthy load; a table and JSON.

    python -m tests.lab.soak --state DIR [--faults 200] [--seed N] [--healthy SECONDS] [--kinds "a,b"]

DIR keeps lab and results: run again with the same DIR, it goes on after the last fault. It ends with 0 if
every fault was detected within its bound and service proven again with nothing left, at least 95 % of causes
were named rightly, and nothing restarted under healthy load.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glmspark.config.files import write_json
from tests.lab.fault_kinds import KINDS, RESTART
from tests.lab.fault_site import NODES, Site
from tests.lab.faults import Outcome, as_json, make_fault, table
from tests.lab.launches import KEY, Launches, small_recipe
from tests.lab.ranks_on_nodes import HOME
from tests.lab.virtual import VirtualSparks

ROOM = "256m"
"""Of the file system on which deployments lie on each node: one that can be filled without harm to others."""
_MOUNT = """\
mkdir -p "$1"
mountpoint -q "$1" && exit
mount -t tmpfs -o size="$2" faults "$1"
chown spark: "$1"
"""


def environment_cluster(sparks: VirtualSparks, target: Path) -> Path:
    """The lab's cluster file with this Python environment instead of containers: it starts the fastest."""
    from tests.lab.launches import changed_cluster

    runtime = {"kind": "venv", "venv": sys.prefix}
    return changed_cluster(sparks.home.cluster_file, target, runtime=runtime)


@contextmanager
def deployed(sparks: VirtualSparks, directory: Path, name: str = "faulty") -> Iterator[Site]:
    """glm-tiny on two nodes, on file systems of their own, that comes back by itself; down at the end."""
    launches = Launches(sparks, environment_cluster(sparks, directory / "venv.yaml"))
    recipe = small_recipe(directory, name, tp=2, backend="lockstep")
    with recipe.open("a") as file:
        file.write(f"restart: {json.dumps(RESTART)}\n")
    host = sparks.fabric("spark1")[0]
    for node in NODES:
        sparks.shell(node, "sh", "-c", _MOUNT, "mount", HOME, ROOM, root=True)
    try:
        launches.up(str(recipe), "--keep-up", "--host", host, env={"GLMSPARK_API_KEY": KEY})
        yield Site(launches, name, host)
    finally:
        sparks.glmspark("down", name, ok=False)
        for node in NODES:
            sparks.inside(node, "umount", "-l", HOME, root=True)


def healthy(site: Site, seconds: float) -> int:
    """Load without faults for a while; how often it restarted. It should not."""
    before = site.state("spark1")["restarted"]
    with site.busy():
        time.sleep(seconds)
    assert site.ready, site.states()
    return int(site.state("spark1")["restarted"]) - before


def main() -> int:
    """Run, go on, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--healthy", type=float, default=60.0)
    parser.add_argument("--kinds", help="only these, parted by commas")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after so long; go on another time")
    wanted = parser.parse_args()
    wanted.state.mkdir(parents=True, exist_ok=True)
    results = wanted.state / "soak.json"
    known = (
        json.loads(results.read_text()) if results.exists() else {"seed": None, "outcomes": [], "healthy": []}
    )
    seed = known["seed"] = known["seed"] or wanted.seed or secrets.randbelow(1 << 31)
    print(f"seed {seed}, {len(known['outcomes'])} of {wanted.faults} faults done", flush=True)
    names = wanted.kinds.split(",") if wanted.kinds else [kind.name for kind in KINDS]
    kinds = [kind for kind in KINDS if kind.name in names]
    end = time.monotonic() + 60 * wanted.minutes
    sparks = VirtualSparks(wanted.state / "lab-state")
    sparks.state.mkdir(exist_ok=True)
    sparks.lab("up", str(len(NODES)), "--link", "1gbe", ok=False)
    try:
        with deployed(sparks, wanted.state) as site:
            if wanted.healthy:
                wrong = healthy(site, wanted.healthy)
                known["healthy"].append({"seconds": wanted.healthy, "restarts": wrong})
                print(f"healthy for {wanted.healthy:g} s: {wrong} restarts", flush=True)
            for number in range(len(known["outcomes"]), wanted.faults):
                if time.monotonic() > end:
                    break
                chance = random.Random(f"{seed}/{number}")
                # Every kind in turn, in an order of chance, so that a short run has them all.
                order = random.Random(f"{seed}/{number // len(kinds)}").sample(kinds, len(kinds))
                kind = order[number % len(kinds)]
                with site.busy():
                    time.sleep(chance.uniform(0.5, 3.0))
                    found = make_fault(site, kind, chance.choice(kind.nodes), number=number, seed=seed)
                known["outcomes"] += as_json([found])
                write_json(results, known)
                print(table([found]).splitlines()[-1], flush=True)
                if found.end != "proven":
                    print("service did not come back; see its evidence", flush=True)
                    break
    finally:
        write_json(results, known)
        if os.environ.get("GLMSPARK_KEEP_LAB") != "1":
            sparks.lab("down", ok=False)
    return judged(known)


def judged(known: dict[str, list[dict[str, object]]]) -> int:
    """Print the whole result; the exit code."""
    fields = Outcome.__dataclass_fields__
    outcomes = [Outcome(**{name: one[name] for name in fields}) for one in known["outcomes"]]  # type: ignore[arg-type]
    print("\n" + table(outcomes))
    right, named = sum(one.right for one in outcomes), sum(one.named for one in outcomes)
    restarts = sum(int(str(one["restarts"])) for one in known["healthy"])
    print(f"\n{right} of {len(outcomes)} right, {named} causes named rightly; healthy: {restarts} restarts")
    return 0 if right == len(outcomes) and named >= 0.95 * len(outcomes) and not restarts else 1


if __name__ == "__main__":
    sys.exit(main())
