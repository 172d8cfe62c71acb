"""The guard of a node as seen from outside: its archive, its configuration, and whether it runs there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glmspark import guard
from glmspark.config.cluster import Cluster
from glmspark.nodes.archives import Archive
from glmspark.nodes.facts import Fact

__all__ = [
    "DIRECTORY",
    "GLANCE",
    "GUARD",
    "SEEN",
    "UNIT",
    "Seen",
    "addresses",
    "config",
    "parse_seen",
    "supervise",
    "telling",
]

GUARD = Archive("guard", guard, "__main__", {"ok": False})

DIRECTORY = "/var/lib/glmspark/guard"
"""Of the guard that systemd runs. That of a node without systemd lies in the user's state directory."""

UNIT = "glmspark-guard.service"

FRESH = 15.0
"""Seconds after which a state says that its guard does not run."""


@dataclass(frozen=True)
class Seen:
    """What there is of the guard on a node. home: its directory if it has ever run. state: the last it said;
    age: of that, in seconds. base: glmspark's state directory of the user; group, owner: his. program,
    config, secret: SHA-256 of those files in DIRECTORY; unit: the unit's state as systemctl says."""

    systemd: bool
    base: str
    group: int
    home: str | None = None
    state: Mapping[str, Any] | None = None
    age: float | None = None
    program: str | None = None
    config: str | None = None
    secret: str | None = None
    unit: str | None = None
    owner: int | None = None

    @property
    def runs(self) -> bool:
        """Whether a guard tells what it sees."""
        return self.age is not None and self.age < FRESH


_LOOK = """\
base=${GLMSPARK_STATE_DIR:-$HOME/.local/state/glmspark}
printf 'base %s\\ngroup %s\\nowner %s\\nnow %s\\n' "$base" "$(id -g)" "$(id -u)" "$(date +%s)"
if [ -d /run/systemd/system ]; then
  printf 'systemd yes\\nunit %s\\n' "$(systemctl is-active -- "$2" 2> /dev/null)"
fi
hash() {
  if [ -r "$1" ]; then sum=$(sha256sum < "$1"); else sum=$(sudo -n sha256sum -- "$1" 2> /dev/null); fi
  if [ -n "$sum" ]; then printf '%s %s\\n' "$2" "${sum%% *}"; fi
}
hash "$1/guard.pyz" program
hash "$1/config.json" config
hash "$1/secret" secret
for home in "$base/guard" "$1"; do
  if [ -r "$home/state.json" ]; then
    printf 'home %s\\nstate ' "$home"
    cat -- "$home/state.json"
    break
  fi
done
exit 0
"""


def parse_seen(text: str) -> Seen:
    """What the node printed, a name and a value a line. Raises ValueError for anything else."""
    rows: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        rows.setdefault(name, value)
    if "base" not in rows or not rows.get("group", "").isdecimal() or not rows.get("now", "").isdecimal():
        raise ValueError(f"not a look at a guard: {text[:80]!r}")
    state = None
    if "state" in rows:
        try:
            state = json.loads(rows["state"])
        except (ValueError, RecursionError):
            raise ValueError(f"the guard's {rows.get('home')}/state.json is not JSON") from None
        if not isinstance(state, dict) or not isinstance(state.get("time"), int | float):
            raise ValueError(f"{rows.get('home')}/state.json is not a guard's")
    return Seen(
        systemd=rows.get("systemd") == "yes",
        base=rows["base"],
        group=int(rows["group"]),
        owner=int(rows["owner"]) if rows.get("owner", "").isdecimal() else None,
        home=rows.get("home"),
        state=state,
        age=None if state is None else max(0.0, int(rows["now"]) - state["time"]),
        program=rows.get("program"),
        config=rows.get("config"),
        secret=rows.get("secret"),
        unit=rows.get("unit"),
    )


SEEN = Fact("guard", ("sh", "-c", _LOOK, "look", DIRECTORY, UNIT), parse_seen)

_GLANCE = """\
base=${GLMSPARK_STATE_DIR:-$HOME/.local/state/glmspark}
printf 'base %s\\ngroup %s\\nnow %s\\n' "$base" "$(id -g)" "$(date +%s)"
for home in "$base/guard" "$1"; do
  if [ -r "$home/state.json" ]; then
    printf 'home %s\\nstate ' "$home"
    cat -- "$home/state.json"
    break
  fi
done
exit 0
"""

GLANCE = Fact("guard's state", ("sh", "-c", _GLANCE, "glance", DIRECTORY), parse_seen)
"""What the guard says alone, without root and without hashes: for who asks every second."""


def config(
    node: str,
    *,
    base: str,
    group: int,
    owner: int | None = None,
    addresses: Mapping[str, str] | None = None,
    fabric: Sequence[str] = (),
    **more: Any,
) -> bytes:
    """A node's config.json. base: the user's state directory there; group, owner: his. addresses: fabric
    address of every node, if copies shall lie on other nodes; the next in this order gets them first. more:
    as `guard.config`."""
    order = list(addresses or ())
    at = order.index(node) if node in order else 0
    others = [*order[at + 1 :], *order[:at]] if node in order else []
    value: dict[str, Any] = {"version": 1, "node": node, "states": [base], "group": group}
    if owner is not None:
        value["owner"] = owner
    if addresses and others:
        value["listen"] = addresses[node]
        value["peers"] = [{"node": one, "address": addresses[one]} for one in others]
    if fabric:
        value["fabric"] = list(fabric)
    return json.dumps(value | more, indent=1).encode() + b"\n"


def addresses(cluster: Cluster) -> dict[str, str]:
    """The address of each node at which its guard takes copies: its first one on the fabric."""
    return {
        node.name: str(node.fabric[0].address.ip) if node.fabric else node.address for node in cluster.nodes
    }


def supervise(directory: str, *, python: str = "python3") -> list[str]:
    """The command that keeps a guard running where there is no systemd."""
    return [python, "-I", "-S", f"{directory}/guard.pyz", "supervise", "--home", directory]


def telling(seen: Seen) -> dict[str, Any]:
    """What a guard last said, with how long ago, for people and programs."""
    return {"runs": seen.runs, "age_s": seen.age, "home": seen.home, "state": seen.state}
