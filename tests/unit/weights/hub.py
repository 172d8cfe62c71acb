"""A small hub on this machine: one repository, its metadata, and its files by range requests."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "org/model"


class Hub:
    """ranges: whether they are honoured. broken: answers to cut off half-way. sent: bytes. metadata: the last
    answer about the repository."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ranges = True
        self.broken = 0
        self.sent = 0
        self.asked: list[tuple[str, str | None]] = []
        self.url = ""
        self.metadata = b""


def hashes(path: Path) -> dict[str, Any]:
    """What the hub says of a file's content: git's hash of small ones, SHA-256 of shards beside git's hash
    of the pointer to it. Nothing of what would take seconds to hash here."""
    size = path.stat().st_size
    if size > 1 << 26:
        return {}
    data = path.read_bytes()
    if path.suffix == ".safetensors":
        lfs = {"size": size, "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 134}
        return {"blobId": "0" * 40, "lfs": lfs}
    return {"blobId": hashlib.sha1(b"blob %d\0" % size + data).hexdigest()}


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path.startswith(f"/api/models/{REPOSITORY}/revision/"):
                siblings = [
                    {"rfilename": one.name, "size": one.stat().st_size, **hashes(one)}
                    for one in sorted(hub.directory.iterdir())
                    if one.is_file()
                ]
                hub.metadata = json.dumps({"id": REPOSITORY, "sha": COMMIT, "siblings": siblings}).encode()
                self.answer(200, hub.metadata)
                return
            file = hub.directory / path.rpartition("/")[2]
            if not path.startswith(f"/{REPOSITORY}/resolve/{COMMIT}/") or not file.is_file():
                self.answer(404, b"{}")
                return
            asked = self.headers.get("Range")
            hub.asked.append((file.name, asked))
            size = file.stat().st_size
            begin, end = 0, size
            if asked and hub.ranges:
                first, _, last = asked.removeprefix("bytes=").partition("-")
                begin, end = int(first), min(int(last) + 1, size) if last else size
            extra = {"Content-Range": f"bytes {begin}-{end - 1}/{size}"} if asked and hub.ranges else {}
            with file.open("rb") as opened:
                opened.seek(begin)
                data = opened.read(min(end - begin, 1 << 24))
                self.answer(206 if extra else 200, data, {**extra, "Content-Length": str(end - begin)})
                left = end - begin - len(data)
                with contextlib.suppress(ConnectionError):
                    while left > 0 and not self.close_connection:
                        done = os.sendfile(self.connection.fileno(), opened.fileno(), end - left, left)
                        left, hub.sent = left - done, hub.sent + done

        def answer(self, code: int, data: bytes, extra: dict[str, str] | None = None) -> None:
            self.send_response(code)
            for name, value in {"Content-Length": str(len(data)), **(extra or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if hub.broken and code == 206:
                hub.broken -= 1
                data = data[: len(data) // 2]
                self.close_connection = True
            hub.sent += len(data)
            with contextlib.suppress(ConnectionError):
                self.wfile.write(data)

    return Handler


@contextmanager
def serving(directory: Path, host: str = "127.0.0.1") -> Iterator[Hub]:
    """The directory as a repository of a hub at one address, until the block is left."""
    hub = Hub(directory)
    server = ThreadingHTTPServer((host, 0), _handler(hub))
    hub.url = f"http://{host}:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
