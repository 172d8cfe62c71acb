"""A lab for tests: `glmspark lab` as a program, with a state directory of its own; what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmspark.config.cluster import Cluster, load_cluster
from glmspark.lab.cgroups import places
from glmspark.lab.record import LabHome, LabRecord
from glmspark.lab.run import PATH
from glmspark.lab.shell import shell_argv
from glmspark.nodes.ssh import Address

GLMSPARK = [sys.executable, "-m", "glmspark"]


@dataclass(frozen=True)
class VirtualSparks:
    """One lab. state: its state directory."""

    state: Path

    @property
    def home(self) -> LabHome:
        return LabHome(self.state / "lab")

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "GLMSPARK_STATE_DIR": str(self.state)}

    @property
    def record(self) -> LabRecord:
        record = self.home.read()
        assert record is not None, "no lab stands"
        return record

    @property
    def cluster(self) -> Cluster:
        """The cluster file as `lab up` wrote it."""
        return load_cluster(self.home.cluster_file)

    def glmspark(
        self, *words: str, ok: bool = True, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run glmspark with this state directory; a failure shows what it printed."""
        done = subprocess.run(
            [*GLMSPARK, *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert not ok or done.returncode == 0, (
            f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done

    def lab(self, *words: str, ok: bool = True, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run `glmspark lab ...`."""
        return self.glmspark("lab", *words, ok=ok, timeout=timeout)

    def status(self) -> Any:
        """What `lab status --json` says."""
        return json.loads(self.lab("status", "--json", ok=False).stdout)

    def inside(
        self, node: str, *argv: str, root: bool = False, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a node through its namespaces, as `lab shell` does."""
        command = shell_argv(self.home, node, argv, root=root)
        environment = {"PATH": PATH, "TERM": "dumb"}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )

    def shell(self, node: str, *argv: str, root: bool = False, timeout: float = 60) -> str:
        """Run a command in a node; what it printed, without the last line's end. It must succeed."""
        done = self.inside(node, *argv, root=root, timeout=timeout)
        assert done.returncode == 0, f"{node}: {argv}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout.rstrip("\n")

    def code(self, node: str, *argv: str, root: bool = False) -> int:
        """Run a command in a node for its exit code."""
        return self.inside(node, *argv, root=root).returncode

    def ssh(self, node: str, *argv: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in a node with OpenSSH's client and the config that `lab up` wrote.

        ssh hands one string to the node's shell: only plain words here.
        """
        done = subprocess.run(
            ["ssh", "-F", str(self.home.ssh_config), "-o", "BatchMode=yes", node, *argv],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert not ok or done.returncode == 0, (
            f"{node}: {argv}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done

    def address(self, name: str) -> Address:
        """How glmspark's own transport reaches a node, from the cluster file."""
        cluster = self.cluster
        node = cluster.node(name)
        assert node is not None
        reach = cluster.reach(node)
        assert reach.identity_file is not None
        assert reach.known_hosts is not None
        return Address(
            host=node.address,
            port=reach.port,
            user=reach.user,
            name=name,
            config=Path("/dev/null"),
            known_hosts=Path(reach.known_hosts),
            keys=(Path(reach.identity_file),),
        )

    def path(self, node: str, path: str) -> Path:
        """Where a file of a node's /etc, /var, /home, /root or /tmp lies on the machine."""
        return self.home.nodes / node / "own" / path.lstrip("/")

    def fabric(self, node: str) -> list[str]:
        """The fabric addresses of a node."""
        found = self.cluster.node(node)
        assert found is not None
        return [str(link.address.ip) for link in found.fabric]


def namespaces(record: LabRecord) -> set[str]:
    """The namespaces that a lab's processes have and this process has not."""
    kinds = ("net", "mnt", "uts", "ipc", "pid")
    mine = {str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in kinds}
    theirs = {
        str(Path(f"/proc/{one.pid}/ns/{kind}").readlink())
        for one in record.processes()
        for kind in kinds
        if Path(f"/proc/{one.pid}").exists()
    }
    return theirs - mine


def traces(home: LabHome, spaces: AbstractSet[str] = frozenset()) -> list[str]:
    """All that a lab has left here, but for cached images and the lock. spaces: namespaces it had."""
    found = [f"control group {path}" for path in places(home.cgroup)]
    if home.path.exists():
        found += [f"file {path}" for path in home.path.iterdir() if path.name not in ("cache", "lock")]
    mark, directory = f"GLMSPARK_LAB={home.path}".encode(), f"{home.path}/".encode()
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            mounts = (process / "mountinfo").read_bytes()
            spaces_here = {str(entry.readlink()) for entry in (process / "ns").iterdir()}
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in environment or directory in mounts or spaces_here & spaces:
            found.append(f"process {process.name}: {words[:120]}")
    return found


def interfaces() -> set[str]:
    """The machine's interfaces."""
    return {path.name for path in Path("/sys/class/net").iterdir()}


def run(argv: Sequence[str], timeout: float = 60) -> str:
    """Run a command on the machine; what it printed."""
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=True).stdout
