"""Asking a cluster's endpoint from here: through SSH to its node, so that it need listen nowhere else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

from glmspark.config.canaries import RanksCanary
from glmspark.config.cluster import Cluster
from glmspark.config.recipe import Recipe
from glmspark.launch.canaries import Target, prove
from glmspark.launch.client import Client
from glmspark.launch.probes import PROBES
from glmspark.launch.record import Deployment, Endpoint, Verdict
from glmspark.launch.watching import seen_on_head
from glmspark.nodes.blocking import BlockingNode
from glmspark.nodes.doctor import addresses
from glmspark.nodes.node import Node
from glmspark.nodes.ssh import SshNode

__all__ = ["forwarded", "prove_cluster", "reached"]

_HEALTHY = 60.0


@contextlib.asynccontextmanager
async def forwarded(head: Node, endpoint: Endpoint) -> AsyncIterator[Endpoint]:
    """The endpoint as it is reached from here while the block lasts. Raises NodeError."""
    if not isinstance(head, SshNode):
        yield endpoint
        return
    listener = await head.forward(seen_on_head(endpoint.host), endpoint.port)
    try:
        yield endpoint.model_copy(update={"url": f"http://127.0.0.1:{listener.get_port()}/v1"})
    finally:
        listener.close()


@contextlib.contextmanager
def reached(deployment: Deployment) -> Iterator[Endpoint]:
    """The endpoint of any deployment as it is reached from here while the block lasts, for code that waits.

    Raises NodeError where the node that serves cannot be reached.
    """
    if deployment.cluster is None:
        yield deployment.endpoint
        return
    cluster = Cluster.model_validate_json(json.dumps(deployment.cluster.cluster))
    with BlockingNode(addresses(cluster)[deployment.ranks[0].node]) as head:
        endpoint = deployment.endpoint
        port = head.forward(seen_on_head(endpoint.host), endpoint.port)
        yield endpoint.model_copy(update={"url": f"http://127.0.0.1:{port}/v1"})


async def prove_cluster(
    head: Node,
    deployment: Deployment,
    key: str | None,
    census: Callable[[], Mapping[int, list[str]]],
    tell: Callable[[list[Verdict]], None],
) -> list[Verdict]:
    """Run the recipe's canaries and return their verdicts; every rank's life is always one of them.

    census: titles of the processes of each rank that runs. tell: called after each verdict with those so far.
    Raises ProbeError where the server does not answer at all, NodeError where its node does not.
    """
    canaries = list(Recipe.model_validate_json(json.dumps(deployment.recipe)).canaries)
    if not any(isinstance(canary, RanksCanary) for canary in canaries):
        canaries.append(RanksCanary(probe="ranks"))
    async with forwarded(head, deployment.endpoint) as endpoint:
        client = Client(endpoint, key)
        try:
            await client.wait_healthy(_HEALTHY)
            return await prove(Target(deployment, client.ask, client.count, census), canaries, PROBES, tell)
        finally:
            await client.close()
