"""A node whose running system is pretended: files are real, settings, services and swap are kept in mind."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from glmspark.nodes.node import LocalNode
from glmspark.nodes.transport import Completed, NodeError


class PretendNode(LocalNode):
    """Runs file commands here and answers the rest from `settings`, `running`, `swaps`.

    fail_after: the number of commands after which the connection is gone.
    """

    def __init__(self) -> None:
        super().__init__("spark1")
        self.settings = {"vm.swappiness": 100, "vm.dirty_ratio": 20, "vm.dirty_bytes": 0}
        self.settings |= {"vm.dirty_background_ratio": 10, "vm.dirty_background_bytes": 0}
        self.running = {"gdm.service", "earlyoom.service", "snapd.socket"}
        self.swaps: set[str] = set()
        self.lingering: set[str] = set()
        self.reloads = 0
        self.fail_after: int | None = None
        self.commands = 0

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 30.0,
        input: bytes | None = None,  # noqa: A002 - as Node.run
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        self.commands += 1
        if self.fail_after is not None and self.commands > self.fail_after:
            raise NodeError("the connection was lost", host=self.host)
        said = self._pretend(list(argv))
        if said is not None:
            return Completed(tuple(argv), 0, said, "", 0)
        return await super().run(argv, timeout=timeout, input=input, env=env)

    def _pretend(self, argv: list[str]) -> str | None:
        match argv:
            case ["cat", path] if path.startswith("/proc/sys/"):
                return f"{self.settings[_name(path)]}\n"
            case ["sh", "-c", 'echo "$1" > "$2"', "set", value, path]:
                self._set(_name(path), int(value))
                return ""
            case ["systemctl", "stop", "--", name]:
                self.running.discard(name)
                return ""
            case ["systemctl", "start" | "restart", "--", name]:
                self.running.add(name)
                return ""
            case ["test", "-d", "/run/systemd/system"]:
                return ""
            case ["systemctl", "daemon-reload"]:
                self.reloads += 1
                return ""
            case ["systemctl", "show", _, "--", name]:
                state = "active" if name in self.running else "inactive"
                return f"Id={name}\nLoadState=loaded\nActiveState={state}\nUnitFileState=enabled\n"
            case ["loginctl", verb, user]:
                (self.lingering.add if verb == "enable-linger" else self.lingering.discard)(user)
                return ""
            case ["sh", "-c", script, "swap", path, *rest]:
                if rest:
                    Path(path).write_bytes(b"swap")
                    self.swaps.add(path)
                else:
                    assert "swapoff" in script
                    Path(path).unlink(missing_ok=True)
                    self.swaps.discard(path)
                return ""
        # What is not pretended may touch files alone: a test must never change the machine it runs on.
        assert argv[0] in {"sh", "mkdir", "rm", "rmdir", "chown", "test"}, argv
        assert not any(part.startswith(("/proc", "/sys")) for part in argv), argv
        return None

    def _set(self, name: str, value: int) -> None:
        """As the kernel does: setting bytes clears the ratio and the other way round."""
        self.settings[name] = value
        for kind in ("dirty", "dirty_background"):
            pair = (f"vm.{kind}_bytes", f"vm.{kind}_ratio")
            if name in pair:
                self.settings[pair[1 - pair.index(name)]] = 0

    def state(self) -> tuple[dict[str, int], set[str], set[str], set[str]]:
        """All that is pretended."""
        return dict(self.settings), set(self.running), set(self.swaps), set(self.lingering)


def _name(path: str) -> str:
    return path.removeprefix("/proc/sys/").replace("/", ".")


def tree(root: Path) -> dict[str, tuple[object, ...]]:
    """Every path below a directory: kind, content or target, mode, owner."""
    found: dict[str, tuple[object, ...]] = {}
    for directory, names, files in os.walk(root):
        for name in [*names, *files]:
            path = Path(directory) / name
            status = path.lstat()
            what: object = None
            if path.is_symlink():
                what = str(path.readlink())
            elif path.is_file():
                what = path.read_bytes()
            found[str(path.relative_to(root))] = (what, oct(status.st_mode), status.st_uid, status.st_gid)
    return found
