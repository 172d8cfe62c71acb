"""The kinds of fault: how each is made and taken back, how soon it must be seen, and what names it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from glmspark.lab import cgroups, commands
from glmspark.lab.guards import OVERLAY
from tests.lab.fault_site import NODES, Site
from tests.lab.launches import parted
from tests.lab.ranks_on_nodes import HOME

STALL = 15.0
RESTART = {"times": 1000, "minutes": 60.0, "stall_s": STALL}
"""What the recipe of a deployment for faults says under `restart`."""
_SLOW = "2mbit"
CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
"""Where control groups of version 2 lie, beside those of version 1 or alone."""


@dataclass(frozen=True)
class Kind:
    """A kind of fault. bound: seconds until it must be detected. inject: makes it on a node, and returns what
    takes it back. seen: whether it is detected. named: whether what was said names it. restarts: whether the
    deployment begins anew; else it must go on."""

    name: str
    bound: float
    inject: Callable[[Site, str], Callable[[], None]]
    seen: Callable[[Site, str], str | None]
    named: Callable[[str, str], bool]
    restarts: bool
    nodes: tuple[str, ...] = NODES


def _nothing() -> None:
    """Nothing is to be taken back."""


def _kill(title: str, signal: str) -> Callable[[Site, str], Callable[[], None]]:
    def inject(site: Site, node: str) -> Callable[[], None]:
        pid = site.process(node, title) if title else str(site.state(node)["main"])
        site.root(node, "kill", f"-{signal}", pid)
        return _nothing

    return inject


def _freeze(site: Site, node: str) -> Callable[[], None]:
    """A worker that stands still without a signal: to /proc it only sleeps."""
    group = next(path for path in CGROUPS if (path / "cgroup.controllers").exists()) / f"glmspark-{site.name}"
    group.mkdir(exist_ok=True)
    pid = site.on_machine(node, int(site.process(node, "VLLM::Worker")))
    (group / "cgroup.procs").write_text(str(pid))
    (group / "cgroup.freeze").write_text("1")

    def undo() -> None:
        (group / "cgroup.freeze").write_text("0")
        assert site.until(lambda: not (group / "cgroup.procs").read_text(), 60) is not None
        assert cgroups.remove(group.name) == []  # the kernel lets go of it some time after its process

    return undo


def _cause(site: Site, _: str) -> str | None:
    """What the agents say why they begin anew."""
    for one in site.states():
        if one["state"] in ("restarting", "waiting", "failed") and one["reason"]:
            return f"{one['reason']['what']} [{one['reason'].get('kind')}] on {one['reason'].get('node')}"
    return None


def _cut(site: Site, _: str) -> Callable[[], None]:
    block = parted(site.sparks, *NODES)
    block.__enter__()
    return lambda: block.__exit__(None, None, None)


def _slow(site: Site, node: str) -> Callable[[], None]:
    record = site.sparks.record
    assert record.switch is not None
    fabric = next(network for network in record.wiring.networks if not network.wifi)
    port = next(port.far for port in fabric.ports if port.node == node)

    def set_rate(rate: str, burst: str) -> None:
        assert record.switch is not None
        words = ["tc", "qdisc", "replace", "dev", port, "root", "tbf", "rate", rate, "burst", burst]
        argv = commands.enter_switch(record.switch.pid, [*words, "latency", "50ms"])
        site.launches.must(argv)

    set_rate(_SLOW, "32kb")
    return lambda: set_rate("1gbit", "512kb")


def _fill(site: Site, node: str) -> Callable[[], None]:
    directory = f"{HOME}/filled"
    site.sparks.shell(node, "mkdir", "-p", directory)
    site.sparks.inside(node, "dd", "if=/dev/zero", f"of={directory}/all", "bs=1M")
    return lambda: site.root(node, "rm", "-rf", directory) and None


def _full(site: Site, node: str) -> str | None:
    probe = f"{HOME}/filled/probe"
    done = site.sparks.inside(node, "dd", "if=/dev/zero", f"of={probe}", "bs=64k", "count=1")
    said = done.stderr.splitlines()[0] if done.stderr else ""
    return f"disk of {node}: {said}" if done.returncode and site.ask() == "right" else None


def _hog(site: Site, node: str) -> Callable[[], None]:
    """Memory as a guard sees it near its first threshold: real pressure would hit the whole machine."""
    plan = json.loads(site.inside(node, f"{HOME}/{site.name}/guard.json").read_bytes())
    low, critical = plan["free_low_bytes"], plan["free_critical_bytes"]
    real = site.inside(node, "/proc/meminfo").read_text().splitlines()
    wanted = (low + critical) // 2 // 1024
    pretended = [
        f"{line.split(':')[0]}: {wanted} kB" if line.startswith(("MemFree:", "MemAvailable:")) else line
        for line in real
    ]
    place = site.inside(node, f"{OVERLAY}/proc")
    place.mkdir(parents=True, exist_ok=True)
    (place / "meminfo.new").write_text("\n".join(pretended) + "\n")
    (place / "meminfo.new").rename(place / "meminfo")
    return (place / "meminfo").unlink


def _closed(site: Site, _: str) -> str | None:
    found = site.state("spark1").get("admission") or {"open": True}
    return None if found["open"] or site.ask() != "503" else str(found["why"])


def _kill_guard(site: Site, node: str) -> Callable[[], None]:
    site.root(node, "kill", "-KILL", str(site.guard(node)["pid"]))
    _killed[node] = time.time()
    return _nothing


_killed: dict[str, float] = {}


def _guard_again(site: Site, node: str) -> str | None:
    said = site.guard(node)
    alive = site.inside(node, f"/proc/{said['pid']}").exists()
    return f"guard of {node} again" if alive and said["time"] > _killed[node] + 0.5 else None


def _kill_logins(site: Site, node: str) -> Callable[[], None]:
    site.sparks.inside(node, "pkill", "-KILL", "-f", "^sshd: spark", root=True)
    return _nothing


def _login(site: Site, node: str) -> str | None:
    done = site.sparks.ssh(node, "echo", "there", ok=False)
    return f"login to {node}" if done.stdout.strip() == "there" else None


def _reboot(site: Site, node: str) -> Callable[[], None]:
    """All that the user and the guard had running there is gone at once, without a word."""
    pid = str(site.guard(node)["pid"])
    _killed[node] = time.time()
    site.sparks.inside(node, "sh", "-c", f"kill -KILL {pid}; pkill -KILL -u spark; true", root=True)
    return _nothing


def _says(*words: str) -> Callable[[str, str], bool]:
    return lambda cause, node: all(word.format(node=node) in cause for word in words)


KINDS = (
    Kind("kill a rank", 5, _kill("", "KILL"), _cause, _says("killed by SIGKILL", "on {node}"), True),
    Kind("kill a worker", 5, _kill("VLLM::Worker", "KILL"), _cause, _says("on {node}"), True),
    Kind("halt a rank", 12, _kill("VLLM::Worker", "STOP"), _cause, _says("is halted", "on {node}"), True),
    Kind(
        "freeze a worker",
        4 * STALL,
        _freeze,
        _cause,
        _says("on {node} stands still"),
        True,
    ),
    Kind("API frozen", 2 * STALL, _kill("", "STOP"), _cause, _says("API server", "{node}"), True, NODES[:1]),
    Kind("cut a link", 15, _cut, _cause, _says("was silent", "[lost]"), True, NODES[1:]),
    Kind("slow a link", 10, _slow, lambda site, _: site.ask(), _says("right"), False),
    Kind("fill a disk", 20, _fill, _full, _says("disk of {node}", "No space left"), False),
    Kind("memory hog", 20, _hog, _closed, _says("memory", "on {node}"), False),
    Kind("kill the guard", 15, _kill_guard, _guard_again, _says("guard of {node}"), False),
    Kind("kill logins", 10, _kill_logins, _login, _says("login to {node}"), False),
    Kind("lose a node", 12, _reboot, _cause, _says("[lost]", "on {node}"), True),
)
"""Every kind of fault that the guard and the agents answer for."""
