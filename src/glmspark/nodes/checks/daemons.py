"""Daemons that kill the engine or take its memory, and ports others hold."""

from __future__ import annotations

from glmspark.nodes.checks import Expected, Judge, Verdict
from glmspark.nodes.facts.ports import LISTENERS
from glmspark.nodes.facts.processes import PROCESSES
from glmspark.nodes.facts.services import GRAPHICAL, RIVALS, SERVICES
from glmspark.nodes.survey import Facts

_RIVAL_PROGRAMS = ("earlyoom", "systemd-oomd", "nohang")
# The kernel cuts a process name at 15 characters.
_GRAPHICAL_PROGRAMS = (
    "Xorg",
    "Xwayland",
    "gnome-shell",
    "gdm3",
    "gdm-session-wor",
    "sddm",
    "lightdm",
    "plasmashell",
)


def rivals(facts: Facts) -> Verdict:
    """Nothing else kills processes when memory is short: it would kill ranks while graphs are captured."""
    judge = Judge("OOM daemons", facts.node)
    units, running = facts.get(SERVICES), facts.get(PROCESSES)
    if units is None and running is None:
        return judge.unread(facts, PROCESSES)
    found = sorted(
        {name.removesuffix(".service") for name in RIVALS if units and name in units and units[name].running}
        | {one.name for one in running or () if one.name in _RIVAL_PROGRAMS}
    )
    if found:
        return judge.slow(
            f"{', '.join(found)} may kill ranks while they load or capture graphs",
            "`glmspark tune apply` stops it and remembers; glmspark's guard stops all ranks together instead",
            "services",
        )
    return judge.ok("none")


def graphical(facts: Facts) -> Verdict:
    """No desktop runs: it takes about 2 GiB that the KV cache could have."""
    judge = Judge("desktop", facts.node)
    units, running = facts.get(SERVICES), facts.get(PROCESSES)
    if units is None and running is None:
        return judge.unread(facts, PROCESSES)
    found = sorted(
        {
            name.removesuffix(".service")
            for name in GRAPHICAL
            if units and name in units and units[name].running
        }
        | {one.name for one in running or () if one.name in _GRAPHICAL_PROGRAMS}
    )
    if found:
        return judge.slow(
            f"{', '.join(found)} runs and takes memory from the GPU",
            "`glmspark tune apply` stops it and remembers",
            "services",
        )
    return judge.ok("none")


def ports(facts: Facts, expected: Expected) -> Verdict:
    """The ports of API and rendezvous are free."""
    judge = Judge("ports", facts.node)
    listeners = facts.get(LISTENERS)
    if listeners is None:
        return judge.unread(facts, LISTENERS)
    taken = sorted({one.port for one in listeners if one.port in expected.ports})
    wanted = ", ".join(map(str, expected.ports))
    if taken:
        which = ", ".join(map(str, taken))
        return judge.blocked(
            f"{which} is taken" if len(taken) == 1 else f"{which} are taken",
            f"see by what: sudo ss -tlnp 'sport = :{taken[0]}'; end it, or choose another with --port",
        )
    return judge.ok(f"{wanted} free")
