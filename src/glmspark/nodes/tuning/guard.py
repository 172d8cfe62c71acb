"""The guard as a thing to tune: its program, configuration and unit on a node."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from glmspark.config.cluster import Cluster
from glmspark.nodes.guards import DIRECTORY, GUARD, SEEN, UNIT, addresses, config
from glmspark.nodes.survey import Facts
from glmspark.nodes.tuning import Change, Item, PathState, RunService, SetPath

UNIT_FILE = f"/etc/systemd/system/{UNIT}"
UNIT_WANTED = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
UNIT_TEXT = f"""\
# Written by `glmspark tune apply`; `glmspark tune restore` removes it.
[Unit]
Description=Guard of glmspark: keeps this node reachable while a model runs
After=network.target docker.socket
StartLimitIntervalSec=0

[Service]
ExecStart=/usr/bin/python3 -I -S {DIRECTORY}/guard.pyz run --home {DIRECTORY}
Restart=always
RestartSec=1
KillMode=process
OOMPolicy=continue
OOMScoreAdjust=-1000
LimitMEMLOCK=infinity
Nice=-5
NotifyAccess=main
WatchdogSec=30
UMask=0027

[Install]
WantedBy=multi-user.target
"""
# The agents that it brings back after a reboot, and so the engine, live in the unit's control group: neither
# the end of the guard nor the kernel's killing of an engine may take the rest of the group along.
DATA = tuple(f"{DIRECTORY}/{name}" for name in ("ring", "peers", "state.json", "lock", "oom.json"))
"""What the guard writes."""


@dataclass(frozen=True)
class Wish:
    """How the guard should be on a node. secret: what all guards of the cluster share, None where there are
    no others or it stays as it is. note: what will be missing."""

    config: bytes
    secret: bytes | None = None
    note: str | None = None


def wishes(facts: Mapping[str, Facts], cluster: Cluster | None) -> dict[str, Wish]:
    """How the guards should be on the nodes that were looked at. cluster: whose nodes they are, if any's.

    A secret that all nodes share already stays; else all get a new one, which takes all of them.
    """
    seen = {node: found for node, one in facts.items() if (found := one.get(SEEN)) is not None}
    order = {} if cluster is None or len(cluster.nodes) < 2 else addresses(cluster)
    held = {node: found.secret for node, found in seen.items()}
    whole = bool(order) and set(order) <= set(seen)
    shared = len({held[node] for node in order}) == 1 and None not in held.values() if whole else False
    secret = secrets.token_hex(32).encode() + b"\n" if whole and not shared else None
    wanted = {}
    for node, one in seen.items():
        copies = node in order and (whole or held[node] is not None)
        fabric = _fabric(cluster, node)
        text = config(
            node if node in order else _name(node),
            base=one.base,
            group=one.group,
            owner=one.owner,
            addresses=order if copies else None,
            fabric=fabric,
        )
        note = None
        if node in order and not copies:
            note = "copies of its ring on other nodes begin when all nodes of the cluster are tuned together"
        wanted[node] = Wish(text, secret if copies else None, note)
    return wanted


def _name(node: str) -> str:
    """What the guard calls a node that no cluster file names: hosts may be given with user and port."""
    return node.rpartition("@")[2].partition(":")[0].replace(" ", "-")


def _fabric(cluster: Cluster | None, node: str) -> list[str]:
    known = next((one for one in cluster.nodes if one.name == node), None) if cluster else None
    return [link.interface for link in known.fabric] if known else []


def guard_item(facts: Facts, left: list[str], wish: Wish | None) -> Item | None:
    """What has to change on a node for the guard to run there as wished, if it is."""
    seen = facts.get(SEEN)
    if seen is None:
        left.append(f"guard: {facts.problem(SEEN)}")
        return None
    if wish is None:
        return None
    if not seen.systemd:
        if not seen.runs:
            left.append("guard: systemd does not run there; docs/guard.md says how to run it without")
        return None
    changes: list[Change] = []
    why = []
    if seen.program != GUARD.digest:
        changes.append(SetPath(f"{DIRECTORY}/guard.pyz", PathState("file", GUARD.data)))
        why.append("the guard is not installed" if seen.program is None else "the guard is another version")
    if seen.config != hashlib.sha256(wish.config).hexdigest():
        changes.append(SetPath(f"{DIRECTORY}/config.json", PathState("file", wish.config)))
        why.append("it should know this node, its user and the other nodes")
    if wish.secret is not None:
        changes.append(SetPath(f"{DIRECTORY}/secret", PathState("file", wish.secret, mode=0o600)))
        why.append("guards prove to one another that they are of one cluster")
    if not changes and seen.unit == "active":
        return None
    if not changes:
        why.append(f"{UNIT} is {seen.unit or 'not there'}")
    changes += [
        SetPath(UNIT_FILE, PathState("file", UNIT_TEXT.encode())),
        SetPath(UNIT_WANTED, PathState("link", target=UNIT_FILE)),
        RunService(UNIT, DATA),
    ]
    if wish.note:
        why.append(wish.note)
    return Item("guard", "guard", tuple(changes), tuple(why))
