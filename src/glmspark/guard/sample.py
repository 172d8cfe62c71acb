"""One look at everything the guard watches."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from .config import Config
from .deployments import Deployed, DeploymentReader
from .engine_metrics import Engine, fetch
from .files import Roots, Trouble
from .gpu import QUERY, Gpu, GpuReader
from .kernel_log import Event, KernelLog
from .links import Link, read_interfaces, read_rdma
from .memory import Memory, MemoryReader

T = TypeVar("T")
_ENGINE_EVERY, _DISK_EVERY, _LINKS_EVERY = 5.0, 10.0, 2.0


@dataclass(frozen=True)
class Sample:
    """What was seen. now: monotonic seconds. disks: by path, bytes free and in all. blind: what could not be
    read, and why."""

    now: float
    memory: Memory | None
    deployments: Sequence[Deployed] = ()
    engines: dict[str, Engine | None] = field(default_factory=dict)
    gpus: Sequence[Gpu] = ()
    net: dict[str, Link] = field(default_factory=dict)
    rdma: dict[str, Link] = field(default_factory=dict)
    disks: dict[str, tuple[int, int]] = field(default_factory=dict)
    events: Sequence[Event] = ()
    blind: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The readings as the state and the ring hold them."""
        return {
            "memory": None if self.memory is None else self.memory.to_json(),
            "gpu": [one.to_json() for one in self.gpus],
            "disk": {path: {"free": free, "total": total} for path, (free, total) in self.disks.items()},
            "net": {name: one.to_json() for name, one in self.net.items()},
            "rdma": {name: one.to_json() for name, one in self.rdma.items()},
        }


class Poller(Generic[T]):
    """Asks again and again in a thread of its own, for what may take its time or never answer."""

    def __init__(self, ask: Callable[[], T], first: T, every: float) -> None:
        self.value = first
        self._ask = ask
        self._every = every
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self.value = self._ask()
            time.sleep(self._every)


def free_on(paths: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Bytes free for users, and in all, on each path's file system; of several on the same, the first."""
    found: dict[str, tuple[int, int]] = {}
    seen = set()
    for path in paths:
        try:
            device = os.stat(path).st_dev  # noqa: PTH116
            about = os.statvfs(path)
        except OSError:
            continue
        if device not in seen:
            seen.add(device)
            found[path] = (about.f_bavail * about.f_frsize, about.f_blocks * about.f_frsize)
    return found


class Sampler:
    """Looks. home: the guard's directory. gpu: the command that asks for GPUs."""

    def __init__(self, config: Config, home: str, *, gpu: Sequence[str] = QUERY) -> None:
        self.roots = Roots(config.overlay)
        self._config = config
        self._memory = MemoryReader(self.roots, config.memory_group)
        self._deployments = DeploymentReader(self.roots, config.states)
        self._log = KernelLog(config.kmsg)
        self._gpu = GpuReader(gpu)
        self._urls: dict[str, str] = {}
        self._links_at = -_LINKS_EVERY
        self._net: dict[str, Link] = {}
        self._rdma: dict[str, Link] = {}
        paths = [home, *config.states]
        self._disks = Poller(lambda: free_on(paths), free_on(paths), _DISK_EVERY)
        self._engines: Poller[dict[str, Engine | None]] = Poller(self._ask_engines, {}, _ENGINE_EVERY)

    def _ask_engines(self) -> dict[str, Engine | None]:
        found: dict[str, Engine | None] = {}
        for name, url in list(self._urls.items()):
            try:
                found[name] = fetch(url)
            except Trouble:
                found[name] = None
        return found

    def read(self, now: float) -> Sample:
        """A look. now: monotonic seconds."""
        blind: dict[str, str] = {}
        memory = self._memory.read(now, blind)
        deployments = self._deployments.read(memory.total if memory else 0) if memory else []
        self._urls = {
            one.name: one.thresholds.metrics_url
            for one in deployments
            if one.phase == "serving" and one.thresholds.metrics_url is not None
        }
        asked = self._engines.value
        if now - self._links_at >= _LINKS_EVERY:
            self._links_at = now
            fabric = self.fabric(deployments)
            self._net, self._rdma = read_interfaces(self.roots, fabric), read_rdma(self.roots)
        events = self._log.read()
        gpus = self._gpu.read(now)
        problems = (("kernel log", self._log.problem), ("GPU", self._gpu.problem))
        blind |= {name: problem for name, problem in problems if problem is not None}
        return Sample(
            now=now,
            memory=memory,
            deployments=deployments,
            engines={name: asked[name] for name in self._urls if name in asked},
            gpus=gpus,
            net=self._net,
            rdma=self._rdma,
            disks=self._disks.value,
            events=events,
            blind=blind,
        )

    def fabric(self, deployments: Sequence[Deployed]) -> tuple[str, ...]:
        """The fabric's interfaces: as the cluster says, and as the deployments do."""
        more = (name for one in deployments if one.active for name in one.thresholds.fabric)
        return tuple(dict.fromkeys((*self._config.fabric, *more)))

    def close(self) -> None:
        """End what was started for it."""
        self._log.close()
        self._gpu.close()
