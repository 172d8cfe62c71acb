"""`glmspark up` on a lab for tests: started, watched line by line, and what is left of it on the nodes."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
from ruamel.yaml import YAML

from glmspark.config import recipe_path
from glmspark.launch.record import Deployment, Home
from tests.lab.virtual import GLMSPARK, VirtualSparks

NODES = ("spark1", "spark2", "spark3")
KEY = "a-key-for-the-lab"
QUESTION = "What is 2+2? Answer in one word:"


def small_recipe(directory: Path, name: str, **layout: Any) -> Path:
    """glm-tiny under another name with two canaries: for tests in which the canaries are not the point."""
    yaml = YAML()
    data = yaml.load(recipe_path("glm-tiny").read_text())
    data["name"] = name
    wanted = [one for one in data["canaries"] if one.get("name") == "sum" or one["probe"] == "ranks"]
    data["canaries"] = wanted
    data["layout"] = {"tp": 1, "pp": 1, **layout}
    path = directory / f"{name}.yaml"
    with path.open("w") as file:
        yaml.dump(data, file)
    return path


@dataclass
class Start:
    """A `glmspark up` that runs."""

    process: subprocess.Popen[str]
    began: float
    lines: list[str] = field(default_factory=list)
    _queue: queue.Queue[str | None] = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def until(self, *words: str, seconds: float = 90) -> None:
        """Wait until it has printed lines with all of these words."""
        left, end = set(words), time.monotonic() + seconds
        while left:
            line = self._queue.get(timeout=max(0.1, end - time.monotonic()))
            assert line is not None, "it ended:\n" + self.text
            left = {word for word in left if word not in line}

    def until_any(self, *words: str, seconds: float = 90) -> None:
        """Wait until it has printed a line with one of these: a phase that passes quickly is not shown."""
        end = time.monotonic() + seconds
        while True:
            line = self._queue.get(timeout=max(0.1, end - time.monotonic()))
            assert line is not None, "it ended:\n" + self.text
            if any(word in line for word in words):
                return

    def end(self, seconds: float = 240) -> int:
        """Wait until it ends; its exit code. One that does not is killed, and its ranks end with it."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"it did not end within {seconds} s:\n{self.text}") from None
        while self._queue.get(timeout=10) is not None:
            pass
        return code

    @property
    def text(self) -> str:
        """All it has printed."""
        return "\n".join(self.lines)

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.monotonic() - self.began


@dataclass(frozen=True)
class Launches:
    """Deployments on a lab. cluster: the cluster file used."""

    sparks: VirtualSparks
    cluster: Path

    def home(self, name: str) -> Home:
        return Home(self.sparks.state / "deployments" / name)

    def record(self, name: str) -> Deployment:
        found = self.home(name).read()
        assert found is not None
        return found

    def start(self, *words: str, cluster: Path | None = None, env: dict[str, str] | None = None) -> Start:
        """Begin `glmspark up`."""
        began = time.monotonic()
        process = subprocess.Popen(
            [*GLMSPARK, "up", "--cluster", str(cluster or self.cluster), *words],
            env={**self.sparks.environment, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return Start(process, began)

    def up(self, *words: str, env: dict[str, str] | None = None) -> str:
        """`glmspark up`; what it printed. It must succeed."""
        start = self.start(*words, env=env)
        code = start.end()
        assert code == 0, start.text
        return start.text

    def refused(self, *words: str, cluster: Path | None = None, within: float = 60) -> str:
        """`glmspark up` that must fail before that many seconds and leave no rank; what it printed."""
        start = self.start(*words, cluster=cluster)
        code = start.end(within)
        assert code in (1, 2), start.text
        assert "Traceback" not in start.text
        assert "next:" in start.text
        return start.text

    def must(self, argv: list[str]) -> None:
        """Run a command on the machine."""
        subprocess.run(argv, check=True, timeout=10)

    def down(self, name: str) -> None:
        """`glmspark down`, after which nothing is left."""
        self.sparks.glmspark("down", name)
        self.assert_nothing_left()

    def assert_nothing_left(self, seconds: float = 0.0) -> None:
        """Within so many seconds no container, rank, shared memory or socket is left on any node."""
        end = time.monotonic() + seconds
        while found := self.left():
            assert time.monotonic() < end, found
            time.sleep(0.2)

    def left(self) -> list[str]:
        """What deployments have on the nodes."""
        found = []
        for node in NODES:
            said = self.sparks.shell(node, "sh", "-c", _LEFT, root=True)
            found += [f"{node}: {line}" for line in said.splitlines()]
        return found


_LEFT = """\
docker ps --all --format 'container {{.Names}} {{.Status}}' --filter label=glmspark.deployment
here=$(readlink /proc/self/ns/net)
ps -eo pid=,args= | grep -E '[g]lmspark.engine|[V]LLM::|[a]gent-[0-9a-f]+.pyz|[r]ay::|[r]aylet' |
while read -r pid words; do
  # Nodes share one table of processes with the machine, and each has a network of its own.
  [ "$(readlink "/proc/$pid/ns/net")" != "$here" ] || echo "$pid $words"
done
ls -d /dev/shm/* /tmp/glmspark-* 2> /dev/null || true
"""


def kill(process: subprocess.Popen[str]) -> None:
    """As a machine that loses power: no time for anything."""
    os.kill(process.pid, signal.SIGKILL)


def pids(sparks: VirtualSparks, node: str, pattern: str) -> list[str]:
    """Processes of a node by their command or title."""
    done = sparks.inside(node, "pgrep", "-f", pattern, root=True)
    return done.stdout.split()


@contextmanager
def parted(sparks: VirtualSparks, *nodes: str) -> Iterator[None]:
    """Nodes that hear this machine and not one another: a fabric cut while SSH lives."""
    from glmspark.lab import commands

    record = sparks.record
    assert record.switch is not None
    fabric = next(network for network in record.wiring.networks if not network.wifi)
    ports = [port for port in fabric.ports if port.node in nodes]

    def isolate(word: str) -> None:
        for port in ports:
            argv = commands.enter_switch(
                record.switch.pid, ["bridge", "link", "set", "dev", port.far, "isolated", word]
            )
            subprocess.run(argv, check=True, timeout=10)

    isolate("on")
    try:
        yield
    finally:
        isolate("off")


def changed_cluster(source: Path, target: Path, **changes: Any) -> Path:
    """A cluster file with other values at dotted keys."""
    yaml = YAML()
    data = yaml.load(source.read_text())
    for dotted, value in changes.items():
        *path, last = dotted.split("__")
        place = data
        for key in path:
            place = place[key]
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    with target.open("w") as file:
        yaml.dump(data, file)
    return target


def client(host: str, port: int = 8000, key: str = KEY) -> openai.OpenAI:
    """OpenAI's own client of an endpoint."""
    return openai.OpenAI(
        base_url=f"http://{host}:{port}/v1",
        api_key=key,
        max_retries=0,
        timeout=60,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    )


def answer(one: openai.OpenAI) -> str:
    """What it says to QUESTION."""
    said = one.chat.completions.create(
        model="glm-tiny", temperature=0, messages=[{"role": "user", "content": QUESTION}]
    )
    return str(said.choices[0].message.content)
