"""The door: who answers on the API's port while no engine serves there, with 503 and Retry-After."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path

from .files import say
from .spec import Api

_LISTEN = "0A"  # TCP_LISTEN of the kernel's include/net/tcp_states.h, as /proc/net/tcp has it
_ATTACH, _BPF_RET = 51, 0x06  # SO_ATTACH_REUSEPORT_CBPF; BPF_RET | BPF_K of linux/bpf_common.h
_HEAD = 1 << 16  # longest head of a request that is read
_PATIENCE = 5.0  # seconds for a client to say what it wants
_AT_ONCE = 256  # clients that are listened to; the agent has other uses for its open files


class Door:
    """Listens beside the engine (SO_REUSEPORT), answers every request with 503, and goes once the engine
    listens itself. why: what clients are told; retry: seconds after which they are told to come again."""

    def __init__(self, api: Api, why: Callable[[], str], retry: Callable[[], float]) -> None:
        self._api, self._why, self._retry = api, why, retry
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._clients = 0

    @property
    def is_open(self) -> bool:
        """Whether it answers."""
        return self._server is not None

    async def open(self) -> None:
        """Begin to answer. Where the port cannot be had nobody answers, and the log says so."""
        if self._server is not None:
            return
        family = socket.AF_INET6 if ":" in self._api.listen else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind((self._api.listen, self._api.port))
            self._server = await asyncio.start_server(self._answer, sock=sock, limit=_HEAD)
            self._socket = sock
            with contextlib.suppress(OSError):  # without it some are still taken by the engine that goes
                _steer(sock)
        except OSError as error:
            sock.close()
            say(f"nobody answers at {self._api.listen}:{self._api.port} meanwhile: {error.strerror}")

    async def close(self) -> None:
        """Stop answering; requests that have come are still answered."""
        if self._server is not None:
            await asyncio.sleep(0)  # take whoever waits at the door
            self._server.close()
            self._server, self._socket = None, None

    def engine_listens(self) -> bool:
        """Whether another socket than the door's listens on the port."""
        own = None if self._socket is None else self._socket_inode()
        return any(inode != own for inode in listeners(self._api.port, address=self._api.listen))

    def _socket_inode(self) -> str:
        assert self._socket is not None  # noqa: S101 - the caller looked
        return str(Path(f"/proc/self/fd/{self._socket.fileno()}").stat().st_ino)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            if self._clients > _AT_ONCE:  # whatever it wants, the answer is the same
                writer.write(refusal(self._why(), self._retry()))
                return
            with contextlib.suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _PATIENCE)
                writer.write(refusal(self._why(), self._retry(), with_body=not head.startswith(b"HEAD ")))
                await writer.drain()
                writer.write_eof()
                # A close with unread bytes of a request would be a reset, which takes the answer with it.
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(_drain(reader), 1.0)
        except (OSError, asyncio.TimeoutError):  # noqa: UP041 - two kinds in Python 3.10
            pass
        finally:
            self._clients -= 1
            writer.close()


def _steer(sock: socket.socket) -> None:
    """Have whoever comes be taken by the last that began to listen on the port, not by any: at first by the
    door and not by an engine that stands still, later by the new engine. Where there is but one, it takes
    all.

    A classic BPF program, `return 1`, for the sockets of the port (SO_ATTACH_REUSEPORT_CBPF, socket(7)). They
    are numbered from 0 as they began to listen; a number that none has counts as no answer.
    """
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", _BPF_RET, 0, 0, 1), 8)
    program = struct.pack("HP", 1, ctypes.addressof(instruction))
    sock.setsockopt(socket.SOL_SOCKET, _ATTACH, program)


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


def refusal(why: str, retry: float, *, with_body: bool = True) -> bytes:
    """The whole answer: 503, when to come again (whole seconds), and an error in OpenAI's form."""
    error = {"message": why, "type": "ServiceUnavailableError", "param": None, "code": 503}
    body = json.dumps({"error": error}).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: {max(1, round(retry))}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")


def listeners(port: int, proc: Path = Path("/proc/self/net"), *, address: str | None = None) -> set[str]:
    """Inodes of the sockets that listen on a TCP port of this network, from /proc/net/tcp and tcp6. address:
    only at that one; another of the node's may have the same port for something else."""
    found, wanted = set(), None if address is None else _as_kernel(address)
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / name).read_text().splitlines()[1:]:
                fields = line.split()
                if len(fields) < 10 or fields[3] != _LISTEN:
                    continue
                host, _, number = fields[1].rpartition(":")
                if int(number, 16) == port and wanted in (None, host):
                    found.add(fields[9])
    return found


def _as_kernel(address: str) -> str | None:
    """An address as /proc/net/tcp has it: words of four bytes in the machine's own order. None for a name."""
    try:
        raw = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    except OSError:
        return None
    words = (int.from_bytes(raw[at : at + 4], sys.byteorder) for at in range(0, len(raw), 4))
    return "".join(f"{word:08X}" for word in words)
