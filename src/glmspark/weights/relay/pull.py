"""The side that takes: from another node, or from the hub by range requests."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from .digest import CHUNK, SIZE, digest, new, root, span
from .serve import END, FAILED, FRAME, WAIT, Pace
from .store import File, TransferError
from .wire import Wire, connect

T = TypeVar("T")
_AGAIN = 60.0
"""Seconds for a broken connection to come back: its other side may be started anew meanwhile."""
_WRONG = 3
"""Times that one chunk may come wrong."""
PIECE = 1 << 18
"""Bytes received, hashed and written in one go."""


class Peer:
    """Another node's relay. where: its address now, which changes when it is started anew."""

    def __init__(self, name: str, where: Callable[[], str | None], key: Mapping[str, str]) -> None:
        self.name = name
        self._where = where
        self._key = key
        self._wire: Wire | None = None
        self._waited = 0.0  # when the other side last said that it has yet to get what was asked for
        self.wrong = 0
        self.broken = 0

    def fetch(self, file: File) -> None:
        """All that is missing of a file. Raises TransferError where it cannot be had, OSError of the disk."""
        counts: dict[int, int] = {}
        give_up = time.monotonic() + _AGAIN
        while missing := file.missing():
            before = len(missing)
            try:
                self._stream(file, missing, counts)
            except (ConnectionError, TimeoutError, _WireError) as error:
                self.broken += self._wire is not None
                self._drop()
                if len(file.missing()) < before:
                    give_up = time.monotonic() + _AGAIN
                if time.monotonic() > max(give_up, self._waited + _AGAIN):
                    raise TransferError(
                        f"the connection to {self.name} broke and did not come back: {error}",
                        advice=f"is {self.name} up, and its fabric address reachable from here? "
                        "Fetching again goes on where it stopped",
                    ) from None
                time.sleep(0.2)

    def digests(self, file: File) -> list[bytes]:
        """The hashes of a file as the other node has it. Raises TransferError."""
        give_up = time.monotonic() + _AGAIN
        while True:
            try:
                wire = self._open()
                wire.send_json({"what": "digests", "file": file.name})
                index, length, top = _frame(wire)
                while index == WAIT:
                    self._waited = time.monotonic()
                    index, length, top = _frame(wire)
                raw = bytes(wire.hear(length))
            except (OSError, ConnectionError) as error:
                self._drop()
                if time.monotonic() > max(give_up, self._waited + _AGAIN):
                    raise TransferError(f"cannot ask {self.name}: {error}") from None
                time.sleep(0.2)
                continue
            if index == FAILED:
                raise TransferError(f"{self.name}: {raw.decode(errors='replace')}")
            found = [raw[i : i + SIZE] for i in range(0, len(raw), SIZE)]
            if len(found) != len(file.digests) or root(file.algorithm, file.size, found) != top:
                raise TransferError(f"{self.name} has another {file.name}, of another size")
            return found

    def _stream(self, file: File, missing: list[int], counts: dict[int, int]) -> None:
        wire = _guarded(self._open)
        bitmap = bytearray(-(-len(file.digests) // 8))
        for index in missing:
            bitmap[index // 8] |= 1 << (index % 8)
        _guarded(wire.send_json, {"what": "chunks", "file": file.name, "missing": bitmap.hex()})
        buffer = bytearray(PIECE)
        asked = set(missing)
        while True:
            index, length, said = _guarded(_frame, wire)
            if index == END:
                return
            if index == WAIT:
                self._waited = time.monotonic()
                continue
            if index == FAILED:
                reason = bytes(_guarded(wire.hear, length)).decode(errors="replace")
                raise TransferError(f"{self.name}: {reason}")
            # One that was not asked for may be one that is verified already: it would be written over.
            begin, end = span(file.size, index) if index in asked else (0, -1)
            if length != end - begin:
                raise _WireError(f"{self.name} sent {length} bytes for chunk {index}")
            asked.remove(index)
            # Hashed and written piece by piece, while it is still in the processor's cache.
            hasher = new(file.algorithm)
            for at in range(0, length, PIECE):
                data = _guarded(wire.receive, min(PIECE, length - at), buffer)
                hasher.update(data)
                file.put(index, at, data)
            if not file.accept(index, bytes(hasher.digest()), said):
                self._refused(file, index, counts)

    def _refused(self, file: File, index: int, counts: dict[int, int]) -> None:
        self.wrong += 1
        counts[index] = counts.get(index, 0) + 1
        if counts[index] >= _WRONG:
            raise TransferError(
                f"chunk {index} of {file.name} came {_WRONG} times from {self.name} with bytes that are not "
                "those it was hashed with",
                step="verify what came",
                advice=f"the file is damaged on {self.name}'s disk: `glmspark verify` names it there, "
                "fetching again mends it",
            )

    def _open(self) -> Wire:
        if self._wire is None:
            address = self._where()
            if address is None:
                raise ConnectionError(f"{self.name} has not started yet")
            self._wire = connect(address, self._key)
        return self._wire

    def _drop(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None


class _WireError(Exception):
    """The connection's fault, not the disk's."""


def _guarded(call: Callable[..., T], *arguments: Any) -> T:
    """What the network does wrong, told apart from what the disk does wrong: both are OSError."""
    try:
        return call(*arguments)
    except OSError as error:
        raise _WireError(str(error) or type(error).__name__) from None


def _frame(wire: Wire) -> tuple[int, int, bytes]:
    index, length, said = FRAME.unpack(wire.hear(FRAME.size))
    return index, length, said


class _Redirects(urllib.request.HTTPRedirectHandler):
    """The token is for the hub alone: it stays behind on the way to another host, or to one without TLS."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        """The request that follows a redirection."""
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and (new.host != req.host or (req.type == "https") > (new.type == "https")):
            new.headers.pop("Authorization", None)
        return new


_OPENER = urllib.request.build_opener(_Redirects)


def _opened(request: urllib.request.Request) -> Any:
    try:
        return _OPENER.open(request, timeout=60)
    except urllib.error.URLError:
        raise  # says which answer it was
    except OSError as error:  # between request and answer: of TLS, or no route any more
        raise _WireError(str(error) or type(error).__name__) from None


class Text:
    """What the control machine itself wrote: the index of a node that holds a part."""

    def __init__(self, text: str) -> None:
        self._data = text.encode()

    def is_in(self, path: Path) -> bool:
        """Whether the file holds just that."""
        return path.stat().st_size == len(self._data) and path.read_bytes() == self._data

    def digests(self, file: File) -> list[bytes]:
        """Its chunks' hashes."""
        spans = (span(file.size, index) for index in range(len(file.digests)))
        return [digest(file.algorithm, self._data[begin:end]) for begin, end in spans]

    def fetch(self, file: File) -> None:
        """Put all of it."""
        for index, found in enumerate(self.digests(file)):
            begin, end = span(file.size, index)
            file.put(index, 0, memoryview(self._data[begin:end]))
            file.accept(index, found, found)


class Hub:
    """A file's address on the hub. headers: such as the token. sha256: of the whole file, if known."""

    def __init__(
        self, url: str, headers: Mapping[str, str], *, sha256: str | None, blob: str | None, pace: Pace
    ) -> None:
        self._url, self._headers = url, dict(headers)
        self._sha256, self._blob = sha256, blob
        self._pace = pace

    def fetch(self, file: File) -> None:
        """All that is missing, run by run of chunks, each tried again a few times. Raises TransferError."""
        tries = 0
        while missing := file.missing():
            first = missing[0]
            last = first
            while last + 1 < len(file.digests) and file.digests[last + 1] is None:
                last += 1
            before = len(missing)
            try:
                self._run(file, first, last)
            except (urllib.error.URLError, _WireError, ValueError, http.client.HTTPException) as error:
                tries = tries + 1 if len(file.missing()) == before else 0
                code = getattr(error, "code", None)
                if code in (401, 403, 404, 416) or tries >= 6:
                    raise TransferError(
                        f"the hub does not give {file.name}: {error}",
                        step="download",
                        advice="for a gated or private repository run `hf auth login` on the control machine",
                    ) from None
                time.sleep(min(2.0**tries / 4, 10))

    def _run(self, file: File, first: int, last: int) -> None:
        begin, end = span(file.size, first)[0], span(file.size, last)[1]
        headers = {**self._headers, "Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        request = urllib.request.Request(self._url, headers=headers)  # noqa: S310 - the control machine's URL
        buffer = bytearray(PIECE)
        with contextlib.closing(_opened(request)) as answer:
            if answer.status != 206 and not (begin == 0 and end == file.size):
                raise TransferError(f"the hub sends no ranges of {file.name}", step="download")
            for index in range(first, last + 1):
                low, high = span(file.size, index)
                hasher = new(file.algorithm)
                at = 0
                while at < high - low:
                    view = memoryview(buffer)[: min(PIECE, high - low - at)]
                    self._pace.take(len(view))
                    done = _guarded(answer.readinto, view)
                    if not done:
                        raise _WireError("the download ended early")
                    hasher.update(view[:done])
                    file.put(index, at, view[:done])
                    at += done
                found = bytes(hasher.digest())
                file.accept(index, found, found)

    def check(self, file: File) -> bool:
        """Whether the whole file is what the hub says it is: by sha256, or by git's hash for small files."""
        path = file.path if file.complete or not file.part_path.exists() else file.part_path
        if self._sha256 is None and self._blob is None:
            return path.stat().st_size == file.size
        hasher = hashlib.sha256() if self._sha256 else hashlib.sha1(f"blob {file.size}\0".encode())  # noqa: S324
        with path.open("rb") as opened:
            while piece := opened.read(CHUNK):
                hasher.update(piece)
        return hasher.hexdigest() == (self._sha256 or self._blob)
