"""A deployment on two nodes of a lab that is asked and logged into while faults are made."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from glmspark.lab.guards import HOME as GUARD
from glmspark.launch.node_agent.proc import HOME_MARK
from tests.lab.launches import KEY, QUESTION, Launches
from tests.lab.ranks_on_nodes import HOME

NODES = ("spark1", "spark2")


class Site:
    """A deployment on two nodes of a lab, with somebody who asks it and somebody who logs in meanwhile."""

    def __init__(self, launches: Launches, name: str, host: str, port: int = 8000) -> None:
        self.launches, self.sparks, self.name = launches, launches.sparks, name
        self.url = f"http://{host}:{port}"
        self._lock = threading.Lock()
        self.answers: dict[str, int] = {}
        self.ssh_longest = 0.0

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
            self.login(node)

    def login(self, node: str) -> None:
        """Log in anew. A session may be killed, as a fault is; then the next one must not."""
        began = time.monotonic()
        there = any(self.sparks.ssh(node, "true", ok=False).returncode == 0 for _ in range(2))
        with self._lock:
            took = time.monotonic() - began if there else 1000.0
            self.ssh_longest = max(self.ssh_longest, took)

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
