"""The side that gives: chunks, once verified here, to whoever proves to be of this transfer."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Mapping

from .digest import CHUNK, SIZE, span
from .store import File, TransferError
from .wire import PIECE, TIMEOUT, Wire

FRAME = struct.Struct(f"<II{SIZE}s")
END, FAILED, WAIT = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD
"""Instead of a chunk's index: all was sent (with the root), it will never come, not yet (so that the other
side knows that this one lives)."""


class Pace:
    """At most so many bytes a second, over all connections; None: as fast as it goes."""

    def __init__(self, rate: int | None) -> None:
        self._rate = rate
        self._free = time.monotonic()
        self._lock = threading.Lock()

    @property
    def limited(self) -> bool:
        """Whether there is a rate."""
        return self._rate is not None

    def take(self, count: int) -> None:
        """Wait until so many bytes may go."""
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            self._free = max(self._free, now - 0.1) + count / self._rate
            wait = self._free - now
        if wait > 0:
            time.sleep(wait)


class Server:
    """Gives the files of one node. sent: bytes of chunks that went out."""

    def __init__(self, files: Mapping[str, File], key: Mapping[str, str], rate: int | None) -> None:
        self._files, self._key = files, key
        self._pace = Pace(rate)
        self.sent = 0
        self.refused = 0
        self._lock = threading.Lock()

    def start(self, listener: socket.socket) -> None:
        """Accept connections in the background."""
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        try:
            wire = Wire(plain, self._key, server=True)
        except (OSError, ValueError):
            self.refused += 1
            plain.close()
            return
        buffer = bytearray(CHUNK)
        wire.patience(0)
        with contextlib.suppress(OSError), contextlib.closing(wire):
            while True:
                asked = wire.receive_json()
                wire.patience(TIMEOUT * 2)
                file = self._files.get(str(asked.get("file")))
                if file is None or not file.asked():
                    _fail(wire, "this node has no such file")
                elif asked.get("what") == "digests":
                    self._digests(wire, file, buffer)
                else:
                    self._chunks(wire, file, bytes.fromhex(asked["missing"]), buffer)
                wire.patience(0)

    def _digests(self, wire: Wire, file: File, buffer: bytearray) -> None:
        try:
            while not file.wait(None, 5.0):
                wire.say(FRAME.pack(WAIT, 0, bytes(SIZE)))
            told = time.monotonic()
            for index, known in enumerate(file.digests):
                if known is None:  # at a source, which reads it for the first time
                    file.read(index, buffer)
                if time.monotonic() - told > 5.0:
                    told = time.monotonic()
                    wire.say(FRAME.pack(WAIT, 0, bytes(SIZE)))
            found = b"".join(file.all_digests())
        except (TransferError, OSError) as error:
            _fail(wire, str(error))
            return
        wire.say(FRAME.pack(END, len(found), file.root()))
        wire.say(found)

    def _chunks(self, wire: Wire, file: File, missing: bytes, buffer: bytearray) -> None:
        try:
            for index in range(len(file.digests)):
                if not missing[index // 8] >> (index % 8) & 1:
                    continue
                begin, end = span(file.size, index)
                while not file.wait(index, 5.0):
                    wire.say(FRAME.pack(WAIT, 0, bytes(SIZE)))
                data, said = file.read(index, buffer)
                wire.say(FRAME.pack(index, end - begin, said))
                # At a low rate a whole chunk takes longer than the other side waits for a sign of life.
                step = PIECE if self._pace.limited else CHUNK
                for at in range(0, len(data), step):
                    self._pace.take(len(data[at : at + step]))
                    wire.send(data[at : at + step])
                with self._lock:
                    self.sent += end - begin
            while not file.wait(None, 5.0):
                wire.say(FRAME.pack(WAIT, 0, bytes(SIZE)))
            wire.say(FRAME.pack(END, 0, bytes(SIZE)))
        except TransferError as error:
            _fail(wire, str(error))


def _fail(wire: Wire, reason: str) -> None:
    raw = reason.encode()[:2000]
    wire.say(FRAME.pack(FAILED, len(raw), bytes(SIZE)))
    wire.say(raw)
