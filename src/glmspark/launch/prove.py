"""Run a deployment's canaries: `python -m glmspark.launch.prove DIRECTORY`.

The supervisor runs it as a process of its own, so that a client library that hangs or leaks never harms what
watches the ranks. It may be started before the server answers. Verdicts are written as they come.

Exit codes: 0 all passed, 1 at least one failed, 3 the server did not answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from glmspark.config.canaries import RanksCanary
from glmspark.config.recipe import Recipe
from glmspark.errors import GlmsparkError
from glmspark.launch.canaries import Target, prove
from glmspark.launch.client import Client
from glmspark.launch.probes import PROBES
from glmspark.launch.record import Deployment, Home, Verdict
from glmspark.launch.watch import VITAL_TITLE
from glmspark.nodes import processes


def census(deployment: Deployment) -> dict[int, list[str]]:
    """The titles of the vLLM processes of each rank whose main process is alive on this machine."""
    stats = processes.all_stats()
    found = {}
    for rank in deployment.ranks:
        if rank.process is None or not processes.is_alive(rank.process.identity):
            continue
        main = rank.process.pid  # in lockstep it is the worker itself
        below = [stat.pid for stat in processes.descendants([main], stats) if not stat.ended]
        titles = [processes.title(pid) for pid in (main, *below)]
        found[rank.rank] = [title for title in titles if title.startswith(VITAL_TITLE)]
    return found


async def run(home: Home, deployment: Deployment) -> list[Verdict]:
    """All verdicts of a deployment; every rank's life is always one of them."""
    canaries = list(Recipe.model_validate_json(json.dumps(deployment.recipe)).canaries)
    if not any(isinstance(canary, RanksCanary) for canary in canaries):
        canaries.append(RanksCanary(probe="ranks"))
    client = Client(deployment.endpoint, home.read_key())
    target = Target(deployment, client.ask, client.count, lambda: census(deployment))
    try:
        if not all(isinstance(canary, RanksCanary) for canary in canaries):
            client.prepare()
        await client.wait_healthy(deployment.limits.start)
        return await prove(target, canaries, PROBES, home.write_verdicts)
    finally:
        await client.close()


def main(argv: list[str] | None = None) -> int:
    """Prove the deployment in a directory; see the module."""
    words = sys.argv[1:] if argv is None else argv
    if len(words) != 1:
        print("usage: python -m glmspark.launch.prove DIRECTORY", file=sys.stderr)
        return 2
    home = Home(Path(words[0]))
    try:
        deployment = home.read()
        if deployment is None:
            print(f"no record in {home.path}", file=sys.stderr)
            return 2
        verdicts = asyncio.run(run(home, deployment))
    except GlmsparkError as error:
        print(f"cannot prove {home.name}: {error.message}", file=sys.stderr)
        return 3
    return 0 if all(verdict.passed for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
