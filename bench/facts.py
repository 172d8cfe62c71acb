"""How much longer the facts of all nodes of a lab take than those of one.

    sudo .venv/bin/glmspark lab up 8
    sudo .venv/bin/python bench/facts.py

The nodes of a lab share one machine's processors, those of a cluster do not. So each node gets a share of its
own that it keeps whether others are busy or not (a quota of the cpu control group, 0.15 cores by default):
slow machines, but machines apart. Connecting is part of the time. Prints the median of the rounds and the
ratio to one node, taken in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from glmspark.config.cluster import load_cluster
from glmspark.lab.record import lab_home
from glmspark.nodes.doctor import addresses
from glmspark.nodes.facts.everything import EVERYTHING
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.survey import survey

PERIOD_US = 20_000  # short: a node that has used its share waits for milliseconds, as a slow one would


def processes_of(init: int) -> list[int]:
    """The processes of the process id namespace that process `init` is the first of."""
    own = Path(f"/proc/{init}/ns/pid").readlink()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "ns/pid").readlink() == own:
                found.append(int(entry.name))
    return found


@contextlib.contextmanager
def shares(nodes: dict[str, int], cores: float) -> Iterator[None]:
    """Hold each node, given by its first process, to so many cores; at the end all are as before."""
    root = Path("/sys/fs/cgroup/cpu")
    old = (root / "cpu.cfs_quota_us").exists()
    root = root if old else Path("/sys/fs/cgroup")
    groups = {}
    try:
        for name, init in nodes.items():
            group = groups[name] = root / f"glmspark-bench-{os.getpid()}-{name}"
            group.mkdir()
            quota = f"{int(cores * PERIOD_US)}"
            if old:
                (group / "cpu.cfs_period_us").write_text(f"{PERIOD_US}")
                (group / "cpu.cfs_quota_us").write_text(quota)
            else:
                (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
            for pid in processes_of(init):
                (group / "cgroup.procs").write_text(f"{pid}")
        yield
    finally:
        for group in groups.values():
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    (root / "cgroup.procs").write_text(pid)
            group.rmdir()


async def look(count: int, cluster_file: Path) -> float:
    """Seconds to reach `count` nodes and gather all facts of each."""
    chosen = dict(list(addresses(load_cluster(cluster_file)).items())[:count])
    begin = time.perf_counter()
    async with Fleet(chosen) as fleet:
        found = await fleet.each(lambda node: survey(node, EVERYTHING))
    seconds = time.perf_counter() - begin
    lost = [str(error) for error in (*fleet.lost.values(), *found.values()) if isinstance(error, Exception)]
    if lost:
        sys.exit(f"not all nodes answered: {lost[0]}")
    return seconds


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cores", type=float, default=0.15, help="share of each node, in cores")
    options = parser.parse_args()
    home = lab_home()
    record = home.read()
    if record is None:
        sys.exit("no lab is up: sudo .venv/bin/glmspark lab up 8")
    inits = {node.name: node.init.pid for node in record.nodes if node.init is not None}
    cluster = home.cluster_file
    one, all_ = [], []
    with shares(inits, options.cores):
        for _ in range(options.rounds):
            one.append(asyncio.run(look(1, cluster)))
            all_.append(asyncio.run(look(len(inits), cluster)))
    first, whole = statistics.median(one), statistics.median(all_)
    print(f"1 node   {first:.2f} s")
    print(f"{len(inits)} nodes  {whole:.2f} s   ratio {whole / first:.2f}")


if __name__ == "__main__":
    main()
