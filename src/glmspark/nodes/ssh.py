"""A node behind SSH. ~/.ssh/config, the agent and known_hosts count as they do for `ssh`; passwords do not.

Host keys are always checked: a host that is not in known_hosts is refused with its key's fingerprint, a
host whose key changed is refused with the line to look at.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from glmspark.nodes.node import Node, shown
from glmspark.nodes.transport import Completed, NodeError

CONNECT_SECONDS = 10.0
LOGIN_SECONDS = 15.0
# A cut link shows after this many seconds times KEEPALIVE_COUNT, not after TCP's quarter of an hour.
KEEPALIVE_SECONDS = 5.0
KEEPALIVE_COUNT = 3
# How much longer than the node itself we wait for a command that reaches its time limit there.
GRACE_SECONDS = 5.0


@dataclass(frozen=True)
class Address:
    """Where a node's sshd is. host: name, address or alias of ~/.ssh/config.

    None means what ~/.ssh/config says, or ssh's default. name: how errors call the node, the host if None.
    config: the file to read instead of ~/.ssh/config. known_hosts: the file instead of the usual ones.
    keys: private key files beside the agent's.
    """

    host: str
    port: int | None = None
    user: str | None = None
    name: str | None = None
    config: Path | None = None
    known_hosts: Path | None = None
    keys: tuple[Path, ...] = ()

    @property
    def label(self) -> str:
        """How errors call the node."""
        return self.name or self.host

    @classmethod
    def parse(cls, text: str) -> Address:
        """An Address from [user@]host[:port]. Raises ValueError for anything else; IPv6 in brackets."""
        user, at, rest = text.rpartition("@")
        if rest.startswith("["):
            host, bracket, port = rest[1:].partition("]")
            port = port.removeprefix(":")
            wrong = not bracket
        elif rest.count(":") > 1:
            host, port, wrong = rest, "", False
        else:
            host, _, port = rest.partition(":")
            wrong = False
        wrong = wrong or not host or host.startswith("-") or any(c.isspace() or c == "/" for c in text)
        if wrong or (at and not user) or (port and not (port.isdecimal() and 0 < int(port) < 65536)):
            raise ValueError(f"expected [user@]host[:port], got {text!r}")
        return cls(host=host, port=int(port) if port else None, user=user or None)


def command_line(argv: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """The text the node's login shell gets: the one place where arguments are quoted.

    Raises ValueError for an empty list, a NUL character (no process can be given one) or a bad name in env.
    """
    if not argv:
        raise ValueError("an empty command")
    words = list(argv)
    if env:
        for name in env:
            if not name or "=" in name:
                raise ValueError(f"not a name of an environment variable: {name!r}")
        words = ["env", "--", *(f"{name}={value}" for name, value in env.items()), *words]
    if any("\0" in word for word in words):
        raise ValueError(f"an argument of {argv[0]} holds a NUL character")
    return shlex.join(words)


class _Client(asyncssh.SSHClient):
    """Remembers the host key that was not trusted, for the error."""

    def __init__(self) -> None:
        self.offered: asyncssh.SSHKey | None = None

    def validate_host_public_key(
        self,
        host: str,  # noqa: ARG002 - asyncssh's signature
        addr: str,  # noqa: ARG002
        port: int,  # noqa: ARG002
        key: asyncssh.SSHKey,
    ) -> bool:
        self.offered = key
        return False


class SshNode(Node):
    """A node with an open connection; `connect` makes it."""

    def __init__(self, address: Address, connection: asyncssh.SSHClientConnection) -> None:
        self.address = address
        self.host = address.label
        self._connection = connection

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 30.0,
        input: bytes | None = None,  # noqa: A002 - as subprocess.run calls it
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run a command on the node; see Node.run.

        The time limit holds on the node as well (`timeout` of coreutils), so that a command ends there even
        when this machine is gone.
        """
        limited = ["timeout", "--kill-after=2", f"{timeout:.3f}", *argv]
        step = shown(argv)
        try:
            line = command_line(limited, env)
        except ValueError as error:
            raise NodeError(f"cannot run {argv[0] if argv else ''}: {error}", host=self.host) from None
        begin = time.monotonic()
        try:
            async with asyncio.timeout(timeout + GRACE_SECONDS):
                done = await self._complete(line, input)
        except TimeoutError:
            raise self._late(argv, timeout, step) from None
        except asyncssh.ChannelOpenError as error:
            raise NodeError(
                f"sshd opens no further session: {error.reason}",
                host=self.host,
                step=step,
                next="raise MaxSessions in /etc/ssh/sshd_config on the node, or try again",
            ) from error
        except (asyncssh.Error, OSError) as error:
            raise self._gone(step, str(error)) from error
        if done.exit_status is None:  # sshd always sends a status or a signal, unless it is gone
            raise self._gone(step, _text(done.stderr).strip()[-1000:])
        seconds = time.monotonic() - begin
        code = _exit_code(done)
        out, err = _text(done.stdout), _text(done.stderr)
        if code in (124, 137) and seconds >= timeout:
            raise self._late(argv, timeout, step, seen=err.strip()[-1000:] or None)
        if code == 127 and "failed to run command" in err:
            raise NodeError(f"cannot run {argv[0]}: no such program", host=self.host, step=step)
        return Completed(tuple(argv), code, out, err, seconds)

    async def _complete(self, line: str, data: bytes | None) -> asyncssh.SSHCompletedProcess:
        process: asyncssh.SSHClientProcess[bytes] = await self._connection.create_process(line, encoding=None)
        try:
            if data:
                process.stdin.write(data)
            process.stdin.write_eof()
            return await process.wait()
        except asyncio.CancelledError:
            # Closing the channel alone would leave the command running on the node until its time is up, as
            # it does for root, whose processes sshd does not signal.
            with contextlib.suppress(OSError, asyncssh.Error):
                process.terminate()
            raise
        finally:
            process.close()

    def _gone(self, step: str, seen: str) -> NodeError:
        return NodeError(
            "the connection was lost while a command ran",
            host=self.host,
            step=step,
            seen=seen or None,
            next=f"check that {self.host} is up and reachable: {_ssh_by_hand(self.address)}",
        )

    def _late(self, argv: Sequence[str], timeout: float, step: str, *, seen: str | None = None) -> NodeError:
        return NodeError(f"{argv[0]} did not end within {timeout:g} s", host=self.host, step=step, seen=seen)

    async def open(self, argv: Sequence[str]) -> asyncssh.SSHClientProcess[bytes]:
        """Start a command whose ends one reads and writes oneself, in bytes; close it when done.

        Raises NodeError where the node does not start it.
        """
        try:
            return await self._connection.create_process(command_line(argv), encoding=None)
        except (asyncssh.Error, OSError) as error:
            raise self._gone(shown(argv), str(error)) from error

    async def forward(self, host: str, port: int) -> asyncssh.SSHListener:
        """A port of this machine (`get_port()`, on 127.0.0.1) that leads to one the node reaches.

        It goes when it is closed, or the connection is. Raises NodeError where the node does not allow it.
        """
        try:
            return await self._connection.forward_local_port("127.0.0.1", 0, host, port)
        except (asyncssh.Error, OSError) as error:
            raise self._gone(f"forward a port to {host}:{port}", str(error)) from error

    async def close(self) -> None:
        """Close the connection."""
        self._connection.close()
        with contextlib.suppress(TimeoutError, OSError, asyncssh.Error):
            async with asyncio.timeout(2):
                await self._connection.wait_closed()


def _exit_code(done: asyncssh.SSHCompletedProcess) -> int:
    """The exit code as a shell would give it: 128 + number for a signal."""
    if done.exit_signal:
        return 128 + getattr(signal, f"SIG{done.exit_signal[0]}", 0)
    return done.exit_status if done.exit_status is not None else 255


def _text(raw: Any) -> str:
    return bytes(raw or b"").decode("utf-8", "replace")


async def connect(address: Address) -> SshNode:
    """Open a connection. Raises NodeError that says why not and what to do."""
    clients: list[_Client] = []

    def factory() -> _Client:
        clients.append(_Client())
        return clients[-1]

    options = _options(address)
    try:
        connection = await asyncssh.connect(
            address.host,
            client_factory=factory,
            connect_timeout=CONNECT_SECONDS,
            login_timeout=LOGIN_SECONDS,
            keepalive_interval=KEEPALIVE_SECONDS,
            keepalive_count_max=KEEPALIVE_COUNT,
            password_auth=False,
            kbdint_auth=False,
            **options,
        )
    except (OSError, asyncssh.Error, ValueError, TimeoutError) as error:
        offered = clients[-1].offered if clients else None
        if offered is None and _known_keys(address) and _may_be_about_keys(error):
            offered = await _offered(address)
            if offered in _known_keys(address):
                offered = None
        raise _why(address, error, offered) from error
    return SshNode(address, connection)


def _may_be_about_keys(error: Exception) -> bool:
    """Whether this can be sshd that has no key of the types in known_hosts: it just closes the connection."""
    return isinstance(error, asyncssh.DisconnectError | ConnectionResetError) and not isinstance(
        error, asyncssh.PermissionDenied
    )


async def _offered(address: Address) -> asyncssh.SSHKey | None:
    """The host key that sshd shows to one who knows none; None where it shows none."""
    options = {key: value for key, value in _options(address).items() if key in ("port", "config")}
    with contextlib.suppress(OSError, asyncssh.Error, ValueError, TimeoutError):
        async with asyncio.timeout(CONNECT_SECONDS):
            return await asyncssh.get_server_host_key(address.host, **options)
    return None


def _options(address: Address) -> dict[str, Any]:
    """Arguments of asyncssh.connect. What is left out comes from ~/.ssh/config."""
    options: dict[str, Any] = {}
    if address.port is not None:
        options["port"] = address.port
    if address.user is not None:
        options["username"] = address.user
    if address.config is not None:
        options["config"] = [str(address.config)]
    if address.known_hosts is not None:
        options["known_hosts"] = str(address.known_hosts)
    elif _known_hosts(address, options) is None:
        # `UserKnownHostsFile none` would switch the check off here, while for ssh it means "knows no host".
        options["known_hosts"] = b""
    if address.keys:
        options["client_keys"] = [str(key) for key in address.keys]
    return options


def _known_hosts(address: Address, options: Mapping[str, Any]) -> Any:
    """The files with host keys that count for this host; None would mean no check at all."""
    wanted = {key: value for key, value in options.items() if key in ("config", "username", "port")}
    try:
        return asyncssh.SSHClientConnectionOptions(host=address.host, **wanted).known_hosts
    except (OSError, asyncssh.Error, ValueError):
        return ()  # the same fault comes up again in connect, where it is told


def _why(address: Address, error: Exception, offered: asyncssh.SSHKey | None) -> NodeError:
    """The error people see for a connection that did not come about."""
    where = f"{address.host}" + (f" port {address.port}" if address.port else "")
    by_hand = _ssh_by_hand(address)
    message, following = f"cannot connect to {where}: {error}", f"try it by hand: {by_hand}"
    if offered is not None and not isinstance(error, asyncssh.PermissionDenied):
        return _host_key(address, offered)
    if isinstance(error, TimeoutError | asyncio.TimeoutError) or "timeout expired" in str(error):
        message = f"{where} did not answer within {CONNECT_SECONDS + LOGIN_SECONDS:g} s"
        following = (
            f"ping {address.host}: if it answers but sshd does not, the node is out of memory and needs a "
            "power cycle; if not, check power, cable and address"
        )
    elif isinstance(error, asyncssh.PermissionDenied):
        message = f"sshd on {where} accepts none of our keys"
        following = f"put your key there: ssh-copy-id {by_hand.removeprefix('ssh ')} (or load it: ssh-add)"
    elif isinstance(error, asyncssh.ConnectionLost):
        message = f"{where} took the connection and closed it: {error}"
        following = f"read sshd's log there (journalctl -u ssh), or {following}"
    elif isinstance(error, asyncssh.KeyImportError | asyncssh.KeyEncryptionError):
        message = f"a private key for {where} cannot be read: {error}"
        following = "if it has a passphrase, load it into the agent: ssh-add"
    elif isinstance(error, socket.gaierror):
        message = f"the name {address.host} is not known"
        following = "write its address, or add it to /etc/hosts or ~/.ssh/config"
    elif isinstance(error, ConnectionRefusedError):
        message = f"nothing listens for SSH on {where}"
        following = "start sshd on the node (systemctl start ssh), or give its port"
    elif isinstance(error, OSError) and error.filename:
        message = f"cannot read {error.filename}: {error.strerror}"
        following = "correct the name of the key, known_hosts or settings file"
    elif isinstance(error, OSError):
        message = f"cannot reach {where}: {error.strerror or error}"
        following = "check the address, and that this machine has a route to it"
    return NodeError(message, host=address.label, step="connect over SSH", next=following)


def _host_key(address: Address, offered: asyncssh.SSHKey) -> NodeError:
    fingerprint = f"{offered.get_algorithm()} {offered.get_fingerprint()}"
    changed = bool(_known_keys(address))
    seen = f"it shows the key {fingerprint}"
    if changed:
        return NodeError(
            f"the host key of {address.host} is not the one in known_hosts",
            host=address.label,
            step="connect over SSH",
            seen=seen,
            next=f"if the node was set up anew: ssh-keygen -R {_known_as(address)}; otherwise someone may "
            "stand between you and it",
        )
    return NodeError(
        f"the host key of {address.host} is not known yet",
        host=address.label,
        step="connect over SSH",
        seen=seen,
        next="compare it with `ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub` on the node, then accept it once: "
        f"{_ssh_by_hand(address)}",
    )


def _known_keys(address: Address) -> list[asyncssh.SSHKey]:
    """Keys that known_hosts has for this host."""
    known: Any = str(address.known_hosts) if address.known_hosts else None
    known = known or _known_hosts(address, _options(address)) or _default_known_hosts()
    port = address.port if address.port != 22 else None
    try:
        return list(asyncssh.match_known_hosts(known, address.host, "", port)[0])
    except (OSError, ValueError):
        return []


def _default_known_hosts() -> Any:
    path = Path("~/.ssh/known_hosts").expanduser()
    return str(path) if path.is_file() else b""


def _known_as(address: Address) -> str:
    port = address.port or 22
    return shlex.quote(address.host if port == 22 else f"[{address.host}]:{port}")


def _ssh_by_hand(address: Address) -> str:
    words = ["ssh"]
    if address.config is not None:
        words += ["-F", str(address.config)]
    if address.port is not None:
        words += ["-p", str(address.port)]
    words.append(f"{address.user}@{address.host}" if address.user else address.host)
    return shlex.join(words)
