"""Apply a plan on a node, and take it back.

The journal is written before each change, so that a node on which this broke off anywhere can be restored.
Taking back leaves alone what someone else has changed since, and says so.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
from collections.abc import Callable, Iterable
from dataclasses import replace

from glmspark.nodes.facts.services import parse_services, show
from glmspark.nodes.facts.sysctls import path as sysctl_path
from glmspark.nodes.node import Node, as_root, failed
from glmspark.nodes.transport import NodeError
from glmspark.nodes.tuning import (
    ABSENT,
    JOURNAL,
    Change,
    Linger,
    MakeSwap,
    PathState,
    RunService,
    SetPath,
    SetSysctl,
    StopService,
    TunePlan,
    describe,
)
from glmspark.nodes.tuning.journal import Entry, Journal

_LOOK = """\
if [ -L "$1" ]; then printf 'link '; readlink -n -- "$1" | base64 -w0
elif [ -f "$1" ]; then printf 'file '; stat -c '%a %u %g' -- "$1"; base64 -w0 -- "$1"
elif [ -e "$1" ]; then echo other
else echo absent
fi
"""
# Prints the directories that are missing for a path, the outermost first.
_MISSING = """\
missing=
one=$1
while [ ! -d "$one" ]; do missing="$one
$missing"; one=$(dirname -- "$one"); done
printf '%s' "$missing"
"""
# The journal goes together with the directories that hold nothing else.
_END = """\
rm -f -- "$1" || exit
shift
for one do rmdir -- "$one" 2> /dev/null || exit 0; done
"""
_LINK = """\
set -eu
aside="$2.glmspark-new"
ln -sfn -- "$1" "$aside"
mv -fT -- "$aside" "$2"
"""
_MAKE_SWAP = """\
set -eu
umask 077
rm -f -- "$1"
fallocate -l "$2" -- "$1" || dd if=/dev/zero of="$1" bs=1M count=$(($2 / 1048576)) status=none
chmod 600 -- "$1"
mkswap -- "$1" > /dev/null
swapon -p -10 -- "$1"
"""
_DROP_SWAP = """\
set -eu
if grep -q "^$1 " /proc/swaps; then swapoff -- "$1"; fi
rm -f -- "$1"
"""


class Tuner:
    """Changes one node. root: where its file system begins, other than / in tests. live: whether to touch
    the running system (kernel settings, services, swap) beside the files. sudo: whether to go through it."""

    def __init__(
        self,
        node: Node,
        *,
        root: str = "/",
        live: bool = True,
        sudo: bool = True,
        said: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.node = node
        self._root = root
        self._live = live
        self._sudo = sudo
        self._said = said
        self._systemd: bool | None = None

    async def journal(self) -> Journal:
        """The node's journal, an empty one where there is none. Raises NodeError where it is unreadable."""
        raw = await self.node.get(self._at(JOURNAL), sudo=self._sudo)
        if raw is None:
            return Journal()
        try:
            return Journal.load(raw)
        except ValueError as error:
            raise NodeError(
                f"{JOURNAL} cannot be understood: {error}",
                host=self.node.host,
                step="read the journal",
                next="it says what was there before; restore by hand what it lists, then remove it",
            ) from None

    async def apply(self, plan: TunePlan) -> None:
        """Make all changes of a plan. Raises NodeError; then `restore` takes back what was made."""
        journal = await self.journal()
        await self._make_dirs(posixpath.dirname(JOURNAL), journal)
        for item in plan.items:
            for change in item.changes:
                self._said(f"{plan.node}: {describe(change)}")
                await self._make(change, journal)
        if any(_is_unit(entry) for entry in journal.entries) and await self._has_systemd():
            await self._run(["systemctl", "daemon-reload"], "reload systemd")

    async def restore(self) -> list[str]:
        """Take back every change, the last one first. What was left alone, and why, is returned."""
        journal = await self.journal()
        if not journal.entries:
            return []
        left: list[str] = []
        units = any(_is_unit(entry) for entry in journal.entries)
        # Services start again last: their masks must be gone by then.
        entries = [one for one in reversed(journal.entries) if one.kind not in ("dir", "service")]
        # Of a pair of settings the one that counted comes back first: the kernel clears the other then.
        entries.sort(key=lambda one: one.name in _COUNTERPART and one.before == 0)
        for entry in entries:
            self._said(f"{self.node.host}: {entry.kind} {entry.name}")
            problem = await self._take_back(entry)
            if problem:
                left.append(problem)
            journal.entries.remove(entry)
            await self._write(journal)
        if units and await self._has_systemd():
            await self._run(["systemctl", "daemon-reload"], "reload systemd")
        for entry in [one for one in journal.entries if one.kind == "service"]:
            if entry.before and await self._has_systemd():
                await self._run(["systemctl", "start", "--", entry.name], f"start {entry.name}", timeout=120)
            journal.entries.remove(entry)
            await self._write(journal)
        # Directories only if they are empty: someone may have put something there since.
        around = [posixpath.dirname(JOURNAL)]
        while around[-1] != "/":
            around.append(posixpath.dirname(around[-1]))
        for entry in reversed(
            [one for one in journal.entries if one.kind == "dir" and one.name not in around]
        ):
            await self.node.run([*as_root(self._sudo), "rmdir", "--", self._at(entry.name)])
            journal.entries.remove(entry)
            await self._write(journal)
        last = [self._at(path) for path in around if journal.find("dir", path) is not None]
        await self._run(["sh", "-c", _END, "end", self._at(JOURNAL), *last], "remove the journal")
        return left

    async def _make(self, change: Change, journal: Journal) -> None:
        match change:
            case SetPath(path, after):
                before = await self._look(path)
                if before.same(after):
                    return
                await self._make_dirs(posixpath.dirname(path), journal)
                await self._enter(journal, "path", path, before, after)
                await self._set_path(path, after)
            case SetSysctl(name, value):
                if self._live:
                    before_value = await self._sysctl(name)
                    pair = _COUNTERPART.get(name)
                    if pair is not None and journal.find("sysctl", pair) is None:
                        # Setting the one clears the other: both are remembered.
                        journal.note("sysctl", pair, await self._sysctl(pair), 0)
                    await self._enter(journal, "sysctl", name, before_value, value)
                    await self._run(set_sysctl(name, value), f"set {name}")
            case StopService(name):
                if await self._has_systemd():
                    await self._enter(journal, "service", name, await self._runs(name), False)
                    await self._run(["systemctl", "stop", "--", name], f"stop {name}", timeout=120)
            case MakeSwap(path, size):
                await self._make_dirs(posixpath.dirname(path), journal)
                if self._live and journal.find("swap", path) is None:
                    if (await self._look(path, content=False)).kind != "absent":
                        raise NodeError(
                            f"{path} is there already and not ours",
                            host=self.node.host,
                            step="make a swap file",
                            next=f"look what it is, then remove it: sudo rm {path}",
                        )
                    await self._enter(journal, "swap", path, None, size)
                    await self._run(
                        ["sh", "-c", _MAKE_SWAP, "swap", self._at(path), str(size)],
                        "make a swap file",
                        timeout=900,
                    )
            case RunService(name, data):
                if await self._has_systemd():
                    await self._enter(journal, "unit", name, None, list(data))
                    await self._run(["systemctl", "daemon-reload"], "reload systemd")
                    await self._run(["systemctl", "restart", "--", name], f"start {name}", timeout=120)
            case Linger(user):
                path = f"/var/lib/systemd/linger/{user}"
                await self._make(SetPath(path, PathState("file", b"")), journal)
                if await self._has_systemd():
                    await self._run(["loginctl", "enable-linger", user], f"let {user} linger")

    async def _take_back(self, entry: Entry) -> str | None:
        match entry.kind:
            case "path":
                now = await self._look(entry.name)
                if not now.same(entry.before):
                    # An earlier restore may have broken off before it gave the file back to its owner.
                    without_owner = replace(entry.before, uid=None, gid=None)
                    if not now.same(entry.after) and not now.same(without_owner):
                        return f"{entry.name} was changed by someone else since: left as it is"
                    await self._set_path(entry.name, entry.before)
                # Also where the file is as before already: an earlier restore may have broken off in between.
                if entry.name.startswith("/var/lib/systemd/linger/") and await self._has_systemd():
                    await self._run(
                        ["loginctl", "disable-linger", posixpath.basename(entry.name)], "end lingering"
                    )
            case "sysctl":
                now_value = await self._sysctl(entry.name)
                if now_value not in (entry.after, entry.before) and entry.name not in _COUNTERPART:
                    return f"{entry.name} is {now_value}, set by someone else since: left as it is"
                if now_value != entry.before:
                    await self._run(set_sysctl(entry.name, entry.before), f"set {entry.name}")
            case "unit":
                if await self._has_systemd():
                    await self._run(["systemctl", "stop", "--", entry.name], "stop it", timeout=120)
                await self._run(
                    ["rm", "-rf", "--", *map(self._at, entry.after)], f"remove what {entry.name} wrote"
                )
            case "swap":
                await self._run(
                    ["sh", "-c", _DROP_SWAP, "swap", self._at(entry.name)], "drop the swap file", timeout=900
                )
        return None

    async def _enter(self, journal: Journal, kind: str, name: str, before: object, after: object) -> None:
        journal.note(kind, name, before, after)
        await self._write(journal)

    async def _write(self, journal: Journal) -> None:
        await self.node.put(journal.dump(), self._at(JOURNAL), mode=0o600, sudo=self._sudo)

    async def _make_dirs(self, path: str, journal: Journal) -> None:
        missing = await self._run(["sh", "-c", _MISSING, "missing", self._at(path)], f"look for {path}")
        if not missing:
            return
        for directory in missing.splitlines():
            journal.note("dir", "/" + posixpath.relpath(directory, self._root), None, None)
        if path != posixpath.dirname(JOURNAL):
            await self._write(journal)
        await self._run(["mkdir", "-p", "--", self._at(path)], f"make {path}")

    async def _look(self, path: str, *, content: bool = True) -> PathState:
        argv = ["sh", "-c", _LOOK, "look", self._at(path)] if content else ["test", "-e", self._at(path)]
        done = await self.node.run([*as_root(self._sudo), *argv])
        if not content:
            return PathState("file") if done.code == 0 else ABSENT
        if done.code != 0:
            raise failed(self.node.host, f"look at {path}", done)
        return parse_look(done.stdout, path, self.node.host)

    async def _set_path(self, path: str, state: PathState) -> None:
        at = self._at(path)
        if state.kind == "file":
            # It takes a link's place at once: between removing and writing a connection may end.
            await self.node.put(state.content, at, mode=state.mode, sudo=self._sudo)
            if state.uid is not None:
                await self._run(["chown", f"{state.uid}:{state.gid}", "--", at], f"give {path} its owner")
        elif state.kind == "link":
            await self._run(["sh", "-c", _LINK, "link", state.target, at], f"link {path}")
        else:
            await self._run(["rm", "-f", "--", at], f"remove {path}")

    async def _has_systemd(self) -> bool:
        """Whether systemd runs the node (as sd_booted(3) asks): not so in containers and labs."""
        if self._systemd is None:
            done = await self.node.run(["test", "-d", "/run/systemd/system"])
            self._systemd = self._live and done.code == 0
        return self._systemd

    async def _sysctl(self, name: str) -> int:
        done = await self.node.must(["cat", sysctl_path(name)], f"read {name}")
        return int(done.stdout)

    async def _runs(self, name: str) -> bool:
        done = await self.node.must(show((name,)), f"look at {name}")
        return any(unit.running for unit in parse_services(done.stdout).values())

    async def _run(self, argv: Iterable[str], step: str, *, timeout: float = 30.0) -> str:
        done = await self.node.must([*as_root(self._sudo), *argv], step, timeout=timeout)
        return done.stdout

    def _at(self, path: str) -> str:
        return posixpath.join(self._root, path.lstrip("/"))


_COUNTERPART = {
    "vm.dirty_bytes": "vm.dirty_ratio",
    "vm.dirty_ratio": "vm.dirty_bytes",
    "vm.dirty_background_bytes": "vm.dirty_background_ratio",
    "vm.dirty_background_ratio": "vm.dirty_background_bytes",
}


def set_sysctl(name: str, value: int) -> list[str]:
    """The command that sets a kernel setting now. Without sysctl(8), which is not on everybody's PATH."""
    return ["sh", "-c", 'echo "$1" > "$2"', "set", str(value), sysctl_path(name)]


def _is_unit(entry: Entry) -> bool:
    return entry.kind == "path" and entry.name.startswith("/etc/systemd/system/")


def parse_look(text: str, path: str, host: str) -> PathState:
    """A PathState from what the node printed of a path. Raises NodeError for what cannot be put back."""
    kind, _, rest = text.strip().partition(" ")
    try:
        if kind == "absent":
            return ABSENT
        if kind == "link":
            return PathState("link", target=base64.b64decode(rest).decode())
        if kind == "file":
            first, _, content = rest.partition("\n")
            mode, uid, gid = first.split()
            return PathState("file", base64.b64decode(content), int(mode, 8), int(uid), int(gid))
    except (ValueError, binascii.Error):
        pass
    raise NodeError(
        f"{path} is neither a file nor a link: it could not be put back",
        host=host,
        step=f"look at {path}",
        seen=text[:200],
        next=f"look what it is: ls -ld {path}",
    )
