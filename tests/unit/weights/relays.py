"""Relays as processes of this machine, and a proxy between them that does what bad links do."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from blake3 import blake3

from glmspark.weights.archive import RELAY
from glmspark.weights.spread import certificate
from tests.unit.compiled import compiled

HOST = "127.0.0.1"


def program(directory: Path) -> Path:
    path = directory / "relay.pyz"
    path.write_bytes(compiled(RELAY.data))
    return path


def model(directory: Path, sizes: dict[str, int], seed: int = 1) -> Path:
    """A directory of files with contents that repeat nowhere."""
    directory.mkdir()
    for name, size in sizes.items():
        (directory / name).write_bytes(blake3(f"{seed} {name}".encode()).digest(length=size))
    return directory


def same(one: Path, other: Path) -> bool:
    """Whether all files of `one` lie in `other`, byte for byte."""
    return all(
        (other / path.name).read_bytes() == path.read_bytes() for path in one.iterdir() if path.name[0] != "."
    )


def new_key(trusted: bool) -> dict[str, str]:
    return {"secret": secrets.token_hex(32)} if trusted else {"pem": certificate()}


class Relay:
    """One relay. upstream: the name of the node it takes from, None for a source."""

    def __init__(
        self,
        pyz: Path,
        directory: Path,
        files: dict[str, int],
        key: dict[str, str],
        upstream: str | None,
        **more: Any,
    ) -> None:
        self.spec = {
            "directory": str(directory),
            "algorithm": "blake3",
            "files": more.pop("listed", None)
            or [{"name": name, "size": size, "from": upstream} for name, size in files.items()],
            "listen": [HOST],
            "key": key,
            **more,
        }
        self.pyz = pyz
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.last: dict[str, Any] = {}
        self.start()

    def start(self) -> None:
        """Start it, or start it again."""
        self.process = subprocess.Popen(
            [sys.executable, str(self.pyz), "run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.tell(self.spec)
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()
        said = self.until("listening", "failed")
        self.address = next(iter((said.get("addresses") or {"": str(said)}).values()), "")

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said = json.loads(line)
            if said["t"] == "progress":
                self.last = said
            else:
                self.events.put(said)

    def tell(self, value: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def until(self, *kinds: str, seconds: float = 60) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while True:
            said = self.events.get(timeout=max(end - time.monotonic(), 0.01))
            if said["t"] in kinds:
                return said

    def upstream(self, name: str, address: str) -> None:
        self.tell({"upstreams": {name: address}})

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            return self.process.wait(10)
        finally:
            self.process.kill()


class Proxy:
    """A link: cut() breaks its connections; flip: the byte, counted over all, that is turned over once."""

    def __init__(self, target: str, rate: int | None = None) -> None:
        self.target = target
        self.rate = rate
        self.flip: int | None = None
        self.passed = 0
        self._open: list[socket.socket] = []
        self._server = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self) -> None:
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            host, _, port = self.target.rpartition(":")
            try:
                far = socket.create_connection((host, int(port)))
            except OSError:
                near.close()
                continue
            self._open += [near, far]
            threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, data: bool) -> None:
        try:
            while piece := source.recv(1 << 16):
                if data:
                    begin, self.passed = self.passed, self.passed + len(piece)
                    if self.flip is not None and begin <= self.flip < self.passed:
                        turned = bytearray(piece)
                        turned[self.flip - begin] ^= 1
                        piece, self.flip = bytes(turned), None
                    if self.rate:
                        time.sleep(len(piece) / self.rate)
                target.sendall(piece)
        except OSError:
            pass
        finally:
            for one in (source, target):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)


def flip_on_disk(path: Path, at: int) -> None:
    handle = os.open(path, os.O_RDWR)
    byte = os.pread(handle, 1, at)
    os.pwrite(handle, bytes([byte[0] ^ 1]), at)
    os.close(handle)
