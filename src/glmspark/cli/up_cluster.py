"""`glmspark up --cluster`: the same on several machines."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glmspark.cli.console import duration, own_command, print_json

if TYPE_CHECKING:
    from glmspark.config.cluster import Cluster
    from glmspark.launch.cluster_prepare import ClusterWanted
    from glmspark.launch.cluster_up import LockFiles
    from glmspark.launch.prepare import Wanted
    from glmspark.launch.record import Deployment
    from glmspark.launch.up import Outcome


def up_cluster(
    wanted: Wanted,
    file: Path,
    *,
    nodes: str | None,
    lock: Path | None,
    locked: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Start what is wanted on the nodes of a cluster file, or print what would be started."""
    from glmspark.config.cluster import load_cluster
    from glmspark.errors import UsageError
    from glmspark.launch.cluster_prepare import want
    from glmspark.launch.cluster_up import LockFiles

    names = [name.strip() for name in nodes.split(",") if name.strip()] if nodes is not None else []
    if nodes is not None and not names:
        raise UsageError("--nodes names no node", next="for example: --nodes spark1,spark2")
    files = LockFiles(lock, locked)
    asked = want(wanted, load_cluster(file), path=str(file), backend=wanted.request.backend, names=names)
    if dry_run:
        _print_plan(asked, files, as_json)
        return
    _start(asked, files, as_json)


def _start(asked: ClusterWanted, files: LockFiles, as_json: bool) -> None:
    from glmspark.cli.starting import shown, summary
    from glmspark.launch.cluster_up import bring_up_cluster

    outcome = shown(asked.name, as_json, lambda display: bring_up_cluster(asked, display, files))
    if as_json:
        print_json({**summary(outcome.deployment), "already": outcome.already})
        return
    _print_ready(asked, outcome)


def _print_ready(asked: ClusterWanted, outcome: Outcome) -> None:
    import time

    from glmspark.launch.command import is_loopback

    deployment = outcome.deployment
    glmspark, head = own_command(), deployment.ranks[0].node
    if outcome.already:
        lasted = duration(time.time() - deployment.since)
        print(f"{deployment.name} already runs, {deployment.state} for {lasted}")
    else:
        took = duration(deployment.since - deployment.created)
        print(f"{deployment.name} is ready after {took}: {len(deployment.verdicts)} canaries passed")
    print(f"  endpoint  {deployment.endpoint.url}  (model {deployment.endpoint.model})" + f"  on {head}")
    if is_loopback(deployment.endpoint.host):
        print(f"  from here {shlex.join(tunnel(asked.cluster, head, deployment))}")
    if deployment.endpoint.needs_key:
        print(f"  API key   in {asked.wanted.home.key_file}")
    print(f"  chat      {glmspark} chat --name {deployment.name}")
    print(f"  stop      {glmspark} down {deployment.name}")


def tunnel(cluster: Cluster, head: str, deployment: Deployment) -> list[str]:
    """The ssh command that brings an endpoint on the head's loopback to this machine."""
    node = cluster.node(head)
    assert node is not None  # noqa: S101 - the deployment is on it
    reach, port = cluster.reach(node), deployment.endpoint.port
    words = ["ssh", "-N", "-L", f"{port}:127.0.0.1:{port}"]
    if reach.port is not None:
        words += ["-p", str(reach.port)]
    if reach.identity_file is not None:
        words += ["-i", reach.identity_file]
    if reach.known_hosts is not None:
        words += ["-o", f"UserKnownHostsFile={reach.known_hosts}"]
    return [*words, f"{reach.user}@{node.address}" if reach.user else node.address]


def _print_plan(asked: ClusterWanted, files: LockFiles, as_json: bool) -> None:
    from glmspark.config.units import format_size
    from glmspark.launch.cluster_up import rehearse

    prepared, deployment = rehearse(asked, files)
    plan = prepared.plan
    images = prepared.images
    if as_json:
        commands = [
            {"rank": rank.rank, "node": rank.node, "argv": rank.argv, "env": rank.env}
            for rank in deployment.ranks
        ]
        value: dict[str, Any] = {"name": deployment.name, "plan": deployment.plan, "commands": commands}
        if images is not None:
            value["image"] = {"name": images.name, "id": images.id, "missing": list(images.missing)}
        value["model"] = {"directory": plan.model_dir, "missing": list(prepared.model.lacking)}
        value["warnings"] = [*plan.warnings, *prepared.warnings]
        print_json(value)
        return
    print(
        f"{deployment.name}: TP{plan.tp} PP{plan.pp} by {plan.backend}, {plan.model_dir}, would serve "
        f"{deployment.endpoint.url} on {plan.ranks[0].host}"
    )
    if images is not None and images.missing:
        print(f"image {images.name} would be brought to {', '.join(images.missing)}")
    if prepared.model.lacking:
        print(f"the model would be copied to {', '.join(prepared.model.lacking)}")
    for rank, started in zip(plan.ranks, deployment.ranks, strict=True):
        first, end = rank.layers
        memory = f"{format_size(rank.memory.needed)}, KV cache {format_size(rank.memory.kv_cache)}"
        print(
            f"\nrank {rank.rank} on {rank.host} ({rank.address}, {rank.interface}): "
            f"layers {first}-{end - 1}, {memory}"
        )
        print("  " + " ".join(f"{key}={shlex.quote(value)}" for key, value in sorted(started.env.items())))
        print("  " + shlex.join(started.argv))
    for warning in (*plan.warnings, *prepared.warnings):
        print(f"warning: {warning}", file=sys.stderr)
