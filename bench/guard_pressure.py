"""Which process dies when memory runs out: the engine protected by oom_score_adj -1000, as scripts for Sparks
do it, against our guard, under the same pressure.

As root: python bench/guard_pressure.py [--mib 384] [--json]

A control group (version 1) plays the node: its limit is the node's memory, and in it run a real sshd, a
bystander that stands for the node's other services, and an engine that holds two thirds of the memory and
then grows by 1 % a second. Outside, somebody asks by ssh once a second.

    original    a daemon sets the engine's oom_score_adj to -1000 each second
    kernel      nothing does anything
    guard       the engine is a rank of the node agent, and the guard runs

Scores below 0 take CAP_SYS_RESOURCE. Where that is missing all scores of `original` are moved up by 1000: the
order in which the kernel kills stays the same, and when nothing but the engine and sshd's listener is left,
its killer is switched off in the group: at -1000 it would find no victim.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from glmspark.launch.agent_archive import AGENT
from glmspark.nodes.guards import GUARD, config

MIB = 2**20
GROUPS = Path("/sys/fs/cgroup/memory")
# argv: MiB at once, MiB a second. It writes to every page, as an engine's weights and cache do.
ENGINE = """\
import sys, time
first, growth = int(sys.argv[1]), float(sys.argv[2])
held = [b"x" * 2**20 for _ in range(first)]
begin = time.monotonic()
while True:
    while len(held) - first < growth * (time.monotonic() - begin):
        held.append(b"x" * 2**20)
    time.sleep(0.05)
"""
BYSTANDER = "import time\nheld = b'x' * 12 * 2**20\nwhile True: time.sleep(1)\n"
# The original's daemon: what it does to an engine, each second.
ORIGINAL = """\
import sys, time
while True:
    try:
        open(f"/proc/{sys.argv[1]}/oom_score_adj", "w").write(sys.argv[2])
    except OSError:
        pass
    time.sleep(1)
"""


class Node:
    """The control group and what runs in it. shift: added to all scores."""

    def __init__(self, mib: int, where: Path) -> None:
        self.size, self.where = mib * MIB, where
        self.group = GROUPS / f"glmspark-bench-{os.getpid()}"
        self.group.mkdir()
        (self.group / "memory.limit_in_bytes").write_text(str(self.size))
        with contextlib.suppress(OSError):  # without swap accounting there is none to limit
            (self.group / "memory.memsw.limit_in_bytes").write_text(str(self.size))
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, argv: list[str], *, score: int | None = None) -> int:
        """Start a program in it."""

        def enter() -> None:
            (self.group / "cgroup.procs").write_text(str(os.getpid()))
            if score is not None:
                Path("/proc/self/oom_score_adj").write_text(str(score))

        log = (self.where / f"{name}.log").open("ab")
        # A single thread calls it.
        self.running[name] = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=enter,  # noqa: PLW1509
        )
        return self.running[name].pid

    def pids(self) -> list[int]:
        return [int(word) for word in (self.group / "cgroup.procs").read_text().split()]

    def used(self) -> int:
        return int((self.group / "memory.usage_in_bytes").read_text())

    def clear(self) -> None:
        end = time.monotonic() + 10
        while self.pids() and time.monotonic() < end:
            for pid in self.pids():
                with contextlib.suppress(OSError):
                    os.kill(pid, 9)
            time.sleep(0.1)
        for one in self.running.values():
            one.wait(5)
        (self.group / "memory.force_empty").write_text("0")
        self.group.rmdir()


def start_sshd(node: Node, score: int | None) -> list[str]:
    """An sshd in the node; the command that asks it."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    where = node.where
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(where / name)], check=True)
    shutil.copy(where / "user.pub", where / "authorized")
    Path("/run/sshd").mkdir(exist_ok=True)
    settings = (
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {where}/host\nAuthorizedKeysFile {where}/authorized\n"
        f"StrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\nPidFile none\n"
        f"SetEnv HOME={where}\n"  # whatever root's own shell would start has no part in this
    )
    (where / "sshd_config").write_text(settings)
    pid = node.start(
        "sshd", ["/usr/sbin/sshd", "-D", "-f", f"{where}/sshd_config", "-E", f"{where}/sshd.txt"], score=score
    )
    time.sleep(0.5)
    if score is not None:  # sshd protects its listener, not its sessions; moved up like all others
        Path(f"/proc/{pid}/oom_score_adj").write_text("0")
    options = [
        "BatchMode=yes",
        "StrictHostKeyChecking=no",
        f"UserKnownHostsFile={where}/known",
        "ConnectTimeout=3",
    ]
    words = [word for option in options for word in ("-o", option)]
    return ["ssh", "-q", "-i", str(where / "user"), "-p", str(port), *words, "root@127.0.0.1", "true"]


def may_lower() -> bool:
    """Whether scores below 0 can be set here."""
    code = "import os; os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-1000')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def start_agent(node: Node, argv: list[str], score: int | None) -> int:
    """The engine as a rank of the node agent, proven; its pid."""
    state = node.where / "state"
    (state / "ranks").mkdir(parents=True)
    program = state / "ranks/agent-bench.pyz"
    program.write_bytes(AGENT.data)
    spec = {
        "version": 1,
        "id": "0123456789abcdef",
        "name": "bench",
        "node": "here",
        "rank": 0,
        "world": 1,
        "runtime": "process",
        "argv": argv,
        "env": {},
        "env_file": {},
        "container": None,
        "secrets": {"watch": "ab" * 32, "lockstep": None, "api_key": None},
        "watch": {"listen": None, "connect": None, "silence": 8.0},
        "limits": {"stop": 5.0},
        "record": {"of": "bench"},
    }
    plan = {
        "version": 1,
        "free_low_bytes": node.size * 8 // 100,
        "free_critical_bytes": node.size * 4 // 100,
        "unified": False,
    }
    environment = {**os.environ, "GLMSPARK_STATE_DIR": str(state)}

    def call(do: str, text: str) -> None:
        def enter() -> None:
            (node.group / "cgroup.procs").write_text(str(os.getpid()))
            if score is not None:
                Path("/proc/self/oom_score_adj").write_text(str(score))

        done = subprocess.run(
            [sys.executable, "-I", str(program), do, "bench"],
            input=text.encode(),
            capture_output=True,
            env=environment,
            preexec_fn=enter,
            check=False,
        )
        assert done.returncode == 0, done.stdout

    call("start", json.dumps(spec))
    (state / "ranks/bench/guard.json").write_text(json.dumps(plan))
    call("ready", "")
    return int(json.loads((state / "ranks/bench/state.json").read_text())["main"])


def start_guard(node: Node) -> None:
    """The guard, for which the control group is all the memory there is."""
    home = node.where / "state/guard"
    home.mkdir(parents=True)
    (home / "guard.pyz").write_bytes(GUARD.data)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    text = config(
        "here",
        base=str(node.where / "state"),
        group=os.getgid(),
        memory_group=str(node.group),
        metrics=f"127.0.0.1:{port}",
        kmsg=str(node.where / "kmsg"),
    )
    (home / "config.json").write_bytes(text)
    node.start("guard", [sys.executable, "-I", "-S", str(home / "guard.pyz"), "run", "--home", str(home)])
    end = time.monotonic() + 20
    while not (home / "state.json").exists() and time.monotonic() < end:
        time.sleep(0.1)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def happen(who: str, mib: int, where: Path, seconds: float) -> dict[str, Any]:
    """One run: what died, in which order and how, and whether ssh answered."""
    where.mkdir()
    node = Node(mib, where)
    lowers = may_lower()
    shift = 1000 if who == "original" and not lowers else None
    argv = [sys.executable, "-c", ENGINE, str(mib * 2 // 3), str(mib / 100)]
    deaths: list[tuple[float, str]] = []
    ssh: list[bool] = []
    try:
        ask = start_sshd(node, shift)
        watched = {"sshd": node.running["sshd"].pid}
        watched["bystander"] = node.start("bystander", [sys.executable, "-c", BYSTANDER], score=shift)
        if who == "guard":
            start_guard(node)
            watched["guard"] = node.running["guard"].pid
            watched["engine"] = start_agent(node, argv, None)
        else:
            watched["engine"] = node.start("engine", argv)
        if who == "original":
            score = "0" if shift else "-1000"
            daemon = [sys.executable, "-c", ORIGINAL, str(watched["engine"]), score]
            watched["its daemon"] = node.start("daemon", daemon, score=shift)
        before = kills(node)
        begin = time.monotonic()
        most, spared = 0, 0.0
        while time.monotonic() - begin < seconds:
            tick = time.monotonic()
            most = max(most, node.used())
            for name, pid in watched.items():
                if not alive(pid) and name not in [one for _, one in deaths]:
                    deaths.append((round(time.monotonic() - begin, 1), name))
            ssh.append(answers(ask))
            dead = {name for _, name in deaths}
            if shift and {"bystander", "its daemon"} <= dead and not spared:
                spared = round(time.monotonic() - begin, 1)
                (node.group / "memory.oom_control").write_text("1")
            if spared and time.monotonic() - begin > spared + 10:
                break
            gone = next((at for at, name in deaths if name == "engine"), None)
            if gone is not None and time.monotonic() - begin > gone + 5:
                break
            time.sleep(max(0.0, 1 - (time.monotonic() - tick)))
        result: dict[str, Any] = {
            "who": who,
            "scores": "moved up by 1000" if shift else "as they are",
            "died": [f"{name} at {at} s" for at, name in deaths],
            "no_victim_left": f"at {spared} s" if spared else None,
            "left": [name for name, pid in watched.items() if alive(pid)],
            "ssh": f"{sum(ssh)} of {len(ssh)}",
            "ssh_failed_first": next((number for number, good in enumerate(ssh) if not good), None),
            "most": f"{most / MIB:.0f} of {mib} MiB",
            "killed_by_kernel": kills(node) - before,
        }
        if who == "guard":
            state = json.loads((where / "state/ranks/bench/state.json").read_text())
            result["reason"] = (state.get("reason") or {}).get("what")
            told = json.loads((where / "state/guard/state.json").read_text())
            result["actions"] = [f"{one['action']}: {one['result']}" for one in told["actions"]]
        return result
    finally:
        node.clear()


def answers(ask: list[str]) -> bool:
    """Whether ssh does what it is asked within 5 s."""
    try:
        return subprocess.run(ask, capture_output=True, timeout=5, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def kills(node: Node) -> int:
    """How many processes the kernel has killed there for want of memory."""
    rows = dict(line.split() for line in (node.group / "memory.oom_control").read_text().splitlines())
    return int(rows.get("oom_kill", 0))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=384, help="memory of the node")
    parser.add_argument("--seconds", type=float, default=75.0, help="at most, for each")
    parser.add_argument("--json", action="store_true")
    words = parser.parse_args()
    if os.geteuid() != 0 or not GROUPS.is_dir():
        print("this takes root and control groups of version 1 with memory", file=sys.stderr)
        return 2
    ways = ("original", "kernel", "guard")
    with tempfile.TemporaryDirectory(prefix="glmspark-bench-") as folder:
        found = [happen(who, words.mib, Path(folder) / who, words.seconds) for who in ways]
    if words.json:
        print(json.dumps(found, indent=1))
        return 0
    for one in found:
        print(f"{one.pop('who')}:")
        for name, value in one.items():
            print(f"  {name:16} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
