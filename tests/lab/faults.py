"""Faults for a deployment on a lab that serves real requests. Each is made, must be detected within its bound
and named rightly, and afterwards service is proven again, with nothing left over."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from glmspark.lab import commands
from glmspark.lab.guards import HOME as GUARD
from glmspark.lab.guards import OVERLAY
from glmspark.launch.node_agent.proc import HOME_MARK
from tests.lab.launches import KEY, QUESTION, Launches, parted
from tests.lab.ranks_on_nodes import HOME

NODES = ("spark1", "spark2")
PROVEN = 240.0
"""Seconds from a fault until service is proven again, on a machine that is busy otherwise."""
STALL = 15.0
RESTART = {"times": 1000, "minutes": 60.0, "stall_s": STALL}
"""What the recipe of a deployment for faults says under `restart`."""
_SLOW = "2mbit"
CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
"""Where control groups of version 2 lie, beside those of version 1 or alone."""


@dataclass
class Outcome:
    """One fault and what became of it. Seconds from the fault on. ssh: the longest that a login took."""

    number: int
    seed: int
    kind: str
    node: str
    bound: float
    detected: float | None = None
    named: bool = False
    cause: str = ""
    end: str = ""
    back: float | None = None
    left: list[str] = field(default_factory=list)
    ssh: float = 0.0
    refused: int = 0
    wrong: int = 0

    @property
    def right(self) -> bool:
        """Whether everything was as it must be, the cause's name aside."""
        in_time = self.detected is not None and self.detected <= self.bound
        return in_time and self.end == "proven" and not self.left and not self.wrong and self.ssh < 10.0


class Site:
    """A deployment on two nodes of a lab, with somebody who asks it and somebody who logs in meanwhile."""

    def __init__(self, launches: Launches, name: str, host: str, port: int = 8000) -> None:
        self.launches, self.sparks, self.name = launches, launches.sparks, name
        self.url = f"http://{host}:{port}"
        self._lock = threading.Lock()
        self.answers: dict[str, int] = {}
        self.ssh_longest = 0.0
        self._cut: set[str] = set()

    # -- what there is --------------------------------------------------------------------------------------

    def inside(self, node: str, path: str) -> Path:
        """A file of a node as the node has it, whatever is mounted there."""
        found = self.sparks.record.node(node)
        assert found is not None
        assert found.init is not None
        return Path(f"/proc/{found.init.pid}/root") / path.lstrip("/")

    def state(self, node: str) -> dict[str, Any]:
        """state.json of a rank's agent."""
        found: dict[str, Any] = json.loads(self.inside(node, f"{HOME}/{self.name}/state.json").read_bytes())
        return found

    def states(self) -> list[dict[str, Any]]:
        return [self.state(node) for node in NODES]

    def guard(self, node: str) -> dict[str, Any]:
        """state.json of a node's guard."""
        found: dict[str, Any] = json.loads(self.inside(node, f"{GUARD}/state.json").read_bytes())
        return found

    def root(self, node: str, *argv: str) -> str:
        return self.sparks.shell(node, *argv, root=True)

    def process(self, node: str, title: str) -> str:
        """The pid of the rank's process with a title, in its node."""
        for pid, _ in self.state(node)["family"]:
            said = self.inside(node, f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
            if said.startswith(title):
                return str(pid)
        raise AssertionError(f"{node} has no {title}")

    def on_machine(self, node: str, pid: int) -> int:
        """The number that the machine has for a process of a node."""
        space = self.inside(node, "/proc/1/ns/pid").readlink()
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                numbers = next(
                    line for line in (path / "status").read_text().splitlines() if line.startswith("NSpid:")
                ).split()
                if int(numbers[-1]) == pid and (path / "ns/pid").readlink() == space:
                    return int(path.name)
        raise AssertionError(f"{node} has no process {pid}")

    def strangers(self) -> list[str]:
        """Processes with the deployment's mark that its agents do not know: orphans."""
        found = []
        script = 'grep -lsz "^$1=" /proc/[0-9]*/environ | cut -d/ -f3; true'
        for node in NODES:
            marked = set(self.root(node, "sh", "-c", script, "look", HOME_MARK).split())
            known = {str(pid) for pid, _ in self.state(node)["family"]}
            alive = [pid for pid in marked - known if self.inside(node, f"/proc/{pid}").exists()]
            found += [f"{node}: {pid}" for pid in alive]
        return found

    # -- who asks and who logs in ---------------------------------------------------------------------------

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Requests and logins for the length of a with block."""
        over = threading.Event()
        threads = [threading.Thread(target=self._ask, args=(over,), daemon=True)]
        threads += [threading.Thread(target=self._login, args=(node, over), daemon=True) for node in NODES]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join(60)

    def ask(self, seconds: float = 30.0) -> str:
        """What a client gets: right, wrong, 503, broken (it was under way), or refused."""
        body = {
            "model": "glm-tiny",
            "messages": [{"role": "user", "content": QUESTION}],
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        headers = {"Authorization": f"Bearer {KEY}"}
        try:
            with httpx.Client(trust_env=False, timeout=seconds) as client:
                said = client.post(f"{self.url}/v1/chat/completions", json=body, headers=headers)
        except httpx.ConnectError:
            return "refused"
        except httpx.HTTPError:
            return "broken"
        if said.status_code == 503:
            assert "retry-after" in said.headers
            assert said.json()["error"]["code"] == 503
            return "503"
        if said.status_code != 200:
            return "broken"  # the engine's own word for a request that its end has cut
        return "right" if said.json()["choices"][0]["message"]["content"] == "4" else "wrong"

    def _ask(self, over: threading.Event) -> None:
        while not over.wait(0.5):
            said = self.ask()
            with self._lock:
                self.answers[said] = self.answers.get(said, 0) + 1

    def _login(self, node: str, over: threading.Event) -> None:
        while not over.wait(1.5):
            if node in self._cut:
                continue
            began = time.monotonic()
            with suppress(Exception):
                self.sparks.ssh(node, "true")
            with self._lock:
                self.ssh_longest = max(self.ssh_longest, time.monotonic() - began)

    def fresh(self) -> None:
        """Count anew."""
        with self._lock:
            self.answers, self.ssh_longest = {}, 0.0

    def until(self, what: Callable[[], Any], seconds: float) -> float | None:
        """Seconds until it is true, None where it does not become so in time."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            with suppress(OSError, ValueError, AssertionError):
                if what():
                    return time.monotonic() - began
            time.sleep(0.1)
        return None

    @property
    def ready(self) -> bool:
        return all(one["state"] == "ready" for one in self.states())


@dataclass(frozen=True)
class Kind:
    """A kind of fault. bound: seconds until it must be detected. inject: makes it on a node, and returns what
    takes it back. seen: whether it is detected. named: whether what was said names it. restarts: whether the
    deployment begins anew; else it must go on. undone: seconds after which it is taken back once detected."""

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
        group.rmdir()

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
        _says("no token and no step", "on {node} stands still"),
        True,
    ),
    Kind("API frozen", 2 * STALL, _kill("", "STOP"), _cause, _says("API server", "{node}"), True, NODES[:1]),
    Kind("cut a link", 15, _cut, _cause, _says("was silent", "[lost]"), True, NODES[1:]),
    Kind("slow a link", 10, _slow, lambda site, _: site.ask(), _says("right"), False),
    Kind("fill a disk", 20, _fill, _full, _says("disk of {node}", "No space left"), False),
    Kind("memory hog", 20, _hog, _closed, _says("memory", "on {node}"), False),
    Kind("kill the guard", 15, _kill_guard, _guard_again, _says("guard of {node}"), False),
    Kind("kill logins", 10, _kill_logins, _login, _says("login to {node}"), False),
    Kind("lose a node", 12, _reboot, _cause, _says("[lost]", "on {node}"), True, NODES[1:]),
)
"""Every kind of fault that the guard and the agents answer for."""


def make_fault(site: Site, kind: Kind, node: str, *, number: int, seed: int) -> Outcome:
    """Make a fault and wait for its end; what became of it."""
    found = Outcome(number, seed, kind.name, node, kind.bound)
    restarts = len(site.state("spark1")["restarts"])
    site.fresh()
    began = time.monotonic()
    undo = kind.inject(site, node)
    try:
        if site.until(lambda: _note(found, kind.seen(site, node)), 4 * kind.bound) is not None:
            found.detected = round(time.monotonic() - began, 1)
    finally:
        undo()
    found.named = kind.named(found.cause, node)
    if kind.restarts:
        back = site.until(lambda: site.ready and len(site.state("spark1")["restarts"]) > restarts, PROVEN)
    else:
        back = site.until(lambda: site.ready, PROVEN)
    if back is not None and site.until(lambda: site.ask() == "right", 60) is not None:
        found.back, found.end = round(time.monotonic() - began, 1), "proven"
    else:
        found.end = ", ".join(one["state"] for one in site.states())
    wanted = restarts + (1 if kind.restarts else 0)
    if found.end == "proven" and len(site.state("spark1")["restarts"]) != wanted:
        found.left.append(f"{len(site.state('spark1')['restarts']) - wanted} restarts too many")
    found.left += site.strangers()
    found.ssh = round(site.ssh_longest, 1)
    found.refused, found.wrong = site.answers.get("refused", 0), site.answers.get("wrong", 0)
    return found


def _note(found: Outcome, cause: str | None) -> bool:
    found.cause = cause or ""
    return cause is not None


def table(outcomes: list[Outcome]) -> str:
    """Outcomes for people."""
    rows = [
        "| kind | node | detected (bound) | named | end | back after | longest login |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in outcomes:
        seen = "-" if one.detected is None else f"{one.detected:.1f} s"
        back = "-" if one.back is None else f"{one.back:.0f} s"
        end = one.end + (f"; left: {', '.join(one.left)}" if one.left else "")
        named = "yes" if one.named else f"no: {one.cause[:80]}"
        cells = [one.kind, one.node, f"{seen} ({one.bound:g} s)", named, end, back, f"{one.ssh:.1f} s"]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def as_json(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """Outcomes for programs."""
    return [{**asdict(one), "right": one.right} for one in outcomes]
