"""One node's part of a transfer, from the first line on standard input to its end.

Standard input: a JSON line with the specification, then lines {"upstreams": {node: "IP:PORT"}} whenever a
node has started (anew), {"release": [file]} when all nodes have what this one only passes on, and
{"stop": true}. Its end stops everything: no daemon stays behind. Standard output: JSON lines, see `say`.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from .check import NAME, verify
from .digest import ALGORITHMS
from .manifest import known_digests, read_manifest, write_manifest
from .parts import record_of
from .say import BEAT, say
from .serve import Server
from .store import File, TransferError
from .taking import Taking, part_of
from .wire import listen

_STREAMS = 4
"""Files at once on a node with many processors."""


_ENDING = 3.0
"""Seconds for another transfer to end."""


class Transfer:
    """The files of one model on one node."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.directory = Path(os.path.expanduser(spec["directory"]))  # noqa: PTH111 - keeps what is no ~
        self.algorithm: str = spec["algorithm"]
        self.entries: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in spec["files"]}
        self.files: dict[str, File] = {}
        self.streams: int = spec.get("streams") or min(_STREAMS, max((os.cpu_count() or 1) // 4, 1))
        self.failed = False
        self.done = threading.Event()
        self._writing = threading.Lock()
        self._asked: queue.SimpleQueue[str] = queue.SimpleQueue()

    def run(self) -> None:
        """Offer, fetch, and say how it goes."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.directory / ".glmspark-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._alone()
        self.taking = Taking(
            self.spec, self.directory, read_manifest(self.directory, self.algorithm), self._write_manifest
        )
        for entry in self.entries.values():
            self._know(entry)
        server = None
        if self.spec.get("listen"):
            listeners = {address: listen(address) for address in self.spec["listen"]}
            server = Server(self.files, self.spec["key"], self.spec.get("rate"))
            for one in listeners.values():
                server.start(one)
            say("listening", addresses={address: _place(one) for address, one in listeners.items()})
        else:
            say("listening", addresses={})
        for work in (lambda: self._tell(server), self._fetch_all, self._fetch_asked):
            threading.Thread(target=work, daemon=True).start()
        stopped = False
        for line in sys.stdin:
            said = json.loads(line)
            self.taking.upstreams.update(said.get("upstreams", {}))
            for name in said.get("release", ()):
                self.files[name].drop()
            if said.get("stop"):
                stopped = True
                break
        self._progress(server)
        if stopped and not self.failed:
            for file in self.files.values():
                file.drop()
        if not self.failed and any(entry["from"] is None for entry in self.entries.values()):
            self._write_manifest()  # a source knows its hashes when all has gone out

    def _alone(self) -> None:
        """Take the directory's lock. One whose control machine has just gone is about to let go of it."""
        give_up = time.monotonic() + _ENDING
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < give_up:
                    time.sleep(0.1)
                    continue
                raise TransferError(
                    f"another transfer writes into {self.directory}",
                    advice="wait until it has ended",
                ) from None
            return

    def _know(self, entry: dict[str, Any]) -> None:
        name, size = entry["name"], entry["size"]
        if not NAME.fullmatch(name):
            raise TransferError(f"{name!r} is no plain file name")
        file = self.files[name] = File(self.directory, name, size, self.algorithm, None)
        if entry["from"] is None:
            file.expected = known_digests(self.taking.known, self.directory / name)
            file.offer()
        elif (part := part_of(entry)) is not None:
            file.keep_part(part, (lambda: self._asked.put(name)) if entry.get("through") else None)

    # -- fetching ------------------------------------------------------------------------------------------

    def _fetch_all(self) -> None:
        def work() -> None:
            self._check_room()
            wanted = [name for name, entry in self.entries.items() if entry["from"] is not None]
            if not self.spec.get("listen"):  # nobody takes from here: else what is read for others is hashed
                for file in self._own():
                    file.all_digests()
            # Several files at once where there are processors for it: one connection keeps one busy. The last
            # file comes last: without config.json a directory is no model.
            pool = ThreadPoolExecutor(self.streams)
            try:
                for one in as_completed([pool.submit(self._take, name) for name in wanted[:-1]]):
                    one.result()
            finally:  # what fails is told at once, while others may wait for long
                pool.shutdown(wait=False, cancel_futures=True)
            for name in wanted[-1:]:
                self._take(name)
            self.taking.settle()
            self._write_manifest()

        if self._guarded(work):
            self.done.set()
            say("done", reused=self.taking.reused, **self._numbers())

    def _take(self, name: str) -> None:
        self.taking.take(self.files[name], self.entries[name])

    def _fetch_asked(self) -> None:
        """What is only passed on comes when another node asks for it."""
        while True:
            name = self._asked.get()
            if not self._guarded(lambda: self.taking.bring(self.files[name], self.entries[name])):  # noqa: B023
                return

    def _guarded(self, work: Callable[[], None]) -> bool:
        try:
            work()
        except TransferError as error:
            self._fail(str(error), error.step, error.advice)
        except OSError as error:
            advice = (
                "make room there: what has come is kept, and fetching again goes on"
                if error.errno == 28
                else ""
            )
            self._fail(f"{error.filename or self.directory}: {error.strerror}", "write the weights", advice)
        except Exception as error:  # noqa: BLE001 - else nobody would ever hear of this thread again
            self._fail(f"the relay itself failed: {error!r}", "spread the weights", "")
        else:
            return True
        return False

    def _fail(self, reason: str, step: str, advice: str) -> None:
        self.failed = True
        for file in self.files.values():
            if not file.complete:
                file.fail(reason)
        say("failed", error=reason, step=step, next=advice)

    def _check_room(self) -> None:
        wanted = passing = 0
        for name, entry in self.entries.items():
            file = self.files[name]
            if entry["from"] is None:
                continue
            there = file.path.exists() and record_of(self.taking.known, file.path, file.size) is None
            if there or self.taking.elsewhere(file):
                continue
            if entry.get("through"):  # no more than come at once
                passing = max(passing, file.size * self.streams)
                wanted += file.part.size if file.part is not None and not file.path.exists() else 0
                continue
            have = file.part_path.stat().st_blocks * 512 if file.part_path.exists() else 0
            wanted += max(file.needed - have, 0)
        free = shutil.disk_usage(self.directory).free
        if wanted + passing > free:
            raise TransferError(
                f"{self.directory} has {free} bytes free, {wanted + passing} are needed",
                step="look for room",
                advice="make room there, or set paths.models in cluster.yaml to a larger disk",
            )

    def _write_manifest(self) -> None:
        with self._writing:
            before = self.taking.known.get("files", {})
            # Without what was removed by hand since: nothing would ever bring it back.
            files = {name: one for name, one in before.items() if os.path.lexists(self.directory / name)}
            for name, file in self.files.items():
                if file.record is not None:
                    files[name] = {**file.record, "mtime_ns": file.path.stat().st_mtime_ns}
                elif file.part is not None:
                    continue  # nothing of it is kept here, or it is there as it was
                elif file.complete:
                    files.pop(name, None)
                    if all(one is not None for one in file.digests):  # a source reads nothing for that
                        files[name] = {
                            "size": file.size,
                            "mtime_ns": file.path.stat().st_mtime_ns,
                            "digests": b"".join(file.all_digests()).hex(),
                        }
            write_manifest(self.directory, self.algorithm, files)

    def _own(self) -> list[File]:
        """The files that this node has, and gives."""
        return [self.files[name] for name, entry in self.entries.items() if entry["from"] is None]

    # -- telling -------------------------------------------------------------------------------------------

    def _numbers(self) -> dict[str, int]:
        mine = [self.files[name] for name, entry in self.entries.items() if entry["from"] is not None]
        kept = [file for file in mine if file.part is None or file.part.spans]
        alone = [] if self.spec.get("listen") else self._own()
        peers = self.taking.peers
        return {
            "verified": sum(file.verified for file in kept) + sum(file.hashed for file in alone),
            "total": sum(file.needed for file in kept) + sum(file.size for file in alone),
            "received": sum(file.received for file in mine),
            "wrong": sum(peer.wrong for peer in peers),
            "broken": sum(peer.broken for peer in peers),
        }

    def _tell(self, server: Server | None) -> None:
        while True:
            time.sleep(BEAT)
            self._progress(server)

    def _progress(self, server: Server | None) -> None:
        used = os.times()
        say(
            "progress",
            sent=server.sent if server else 0,
            refused=server.refused if server else 0,
            cpu=round(used.user + used.system, 3),
            **self._numbers(),
        )


def _place(listener: socket.socket) -> str:
    """IP:PORT."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def main(words: list[str]) -> int:
    """`run`: a transfer. `verify DIRECTORY`. `algorithms`: which hashes this Python has."""
    try:
        if words[:1] == ["algorithms"]:
            say("algorithms", names=list(ALGORITHMS))
            return 0
        if words[:1] == ["verify"] and len(words) == 2:
            return 0 if verify(Path(os.path.expanduser(words[1]))) else 1  # noqa: PTH111
        if words != ["run"]:
            sys.stderr.write("use: run | verify DIRECTORY | algorithms\n")
            return 2
        transfer = Transfer(json.loads(sys.stdin.readline()))
        transfer.run()
    except TransferError as error:
        say("failed", error=str(error), step=error.step, next=error.advice)
        return 1
    except OSError as error:
        say("failed", error=f"{error.filename or ''}: {error.strerror}", step="spread the weights", next="")
        return 1
    # Not by way of Python's own end, which waits for threads that wait for other nodes. Each line was written
    # out at once; whoever read them may be gone.
    os._exit(int(transfer.failed))
