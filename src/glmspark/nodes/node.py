"""A node one can work on: run a command there, put and get small files, start what outlives the caller.

Only `run` differs between this machine and one behind SSH. The rest is built on it from fixed scripts whose
every variable part is an argument, so nothing is ever pasted into shell text.
"""

from __future__ import annotations

import abc
import asyncio
import base64
import contextlib
import hashlib
import os
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from typing import cast

from glmspark.nodes.processes import Identity, parse_stat
from glmspark.nodes.transport import Completed, NodeError

TAIL = 2000
"""Characters of standard error that an error shows."""

# A connection that breaks ends the input early: the digest keeps half a file from being renamed into place.
_PUT = """\
set -eu
temporary=$(mktemp -- "$(dirname -- "$1")/.glmspark.XXXXXXXX")
trap 'rm -f -- "$temporary"' EXIT
cat > "$temporary"
arrived=$(sha256sum < "$temporary")
[ "${arrived%% *}" = "$3" ] || { echo 'the content did not arrive whole' >&2; exit 1; }
chmod -- "$2" "$temporary"
sync -- "$temporary"
mv -fT -- "$temporary" "$1"
trap - EXIT
sync -- "$(dirname -- "$1")"
"""

_NOT_THERE = 44
_GET = """\
[ -e "$1" ] || exit 44
exec base64 -- "$1"
"""

# A background job of a shell without job control leads no process group, so setsid need not fork and $! is
# the process itself. Its start time comes along: pid and start time together name it for ever. The shell
# reads it itself: once it starts another program, a job that has ended already is gone from /proc.
_SPAWN = """\
set -eu
cd -- "$1"
log=$2
shift 2
exec 3>> "$log"
setsid "$@" < /dev/null >&3 2>&3 &
exec 3>&-
IFS= read -r stat < "/proc/$!/stat"
printf '%s\n' "$stat"
"""


class Node(abc.ABC):
    """One node. host: its name as errors show it."""

    host: str

    @abc.abstractmethod
    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 30.0,
        input: bytes | None = None,  # noqa: A002 - as subprocess.run calls it
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run a command to its end, whatever its exit code.

        timeout: seconds, after which it is ended. input: its standard input, empty by default. env: added to
        its environment. Raises NodeError when it cannot start or exceeds the time, or the node is lost.
        """

    async def must(
        self,
        argv: Sequence[str],
        step: str,
        *,
        timeout: float = 30.0,
        input: bytes | None = None,  # noqa: A002 - as subprocess.run calls it
        env: Mapping[str, str] | None = None,
        next: str | None = None,  # noqa: A002 - the error's field
    ) -> Completed:
        """Run a command that has to succeed. Raises NodeError with step, command and stderr's last lines."""
        done = await self.run(argv, timeout=timeout, input=input, env=env)
        if done.code != 0:
            raise failed(self.host, step, done, next=next)
        return done

    async def put(
        self, data: bytes, path: str, *, mode: int = 0o644, sudo: bool = False, timeout: float = 30.0
    ) -> None:
        """Replace a small file, whole or not at all. Raises NodeError; then the old file stands."""
        digest = hashlib.sha256(data).hexdigest()
        argv = [*as_root(sudo), "sh", "-c", _PUT, "put", path, f"{mode:04o}", digest]
        await self.must(argv, f"write {path}", timeout=timeout, input=data)

    async def get(self, path: str, *, sudo: bool = False, timeout: float = 30.0) -> bytes | None:
        """A small file's content, None where there is none. Raises NodeError where it is unreadable."""
        argv = [*as_root(sudo), "sh", "-c", _GET, "get", path]
        done = await self.run(argv, timeout=timeout)
        if done.code == _NOT_THERE:
            return None
        if done.code != 0:
            raise failed(self.host, f"read {path}", done)
        return base64.b64decode(done.stdout)

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        log: str,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> Identity:
        """Start a command that outlives the connection, in a session of its own, output appended to `log`.

        Raises NodeError when it cannot start or ends before it can be looked at.
        """
        done = await self.must(
            ["sh", "-c", _SPAWN, "spawn", cwd, log, *argv], f"start {argv[0]}", timeout=timeout, env=env
        )
        stat = parse_stat(done.stdout)
        return Identity(stat.pid, stat.started)

    async def close(self) -> None:  # noqa: B027 - nothing to let go of by default
        """Let go of the node."""


def as_root(sudo: bool) -> list[str]:
    """What to put before a command that needs root: sudo that never asks, or nothing."""
    return ["sudo", "-n"] if sudo else []


def failed(host: str, step: str, done: Completed, *, next: str | None = None) -> NodeError:  # noqa: A002
    """The error for a command that left with another code than 0."""
    seen = done.stderr.strip() or done.stdout.strip()
    if next is None and done.stderr.startswith("sudo:"):
        next = "allow this user passwordless sudo on the node (visudo), or connect as root"  # noqa: A001
    return NodeError(
        f"{shown(done.argv)} left with {done.code}",
        host=host,
        step=step,
        seen=seen[-TAIL:] or None,
        next=next or f"run it by hand on {host}: {shown(done.argv)}",
    )


def shown(argv: Sequence[str]) -> str:
    """A command as people would type it, scripts shortened."""
    return shlex.join(part if "\n" not in part else part.splitlines()[0] + " …" for part in argv)


Pipes = tuple[asyncio.StreamWriter, asyncio.StreamReader, asyncio.StreamReader]


class LocalProcess:
    """A command of this machine whose ends one reads and writes oneself, as SSH gives those of a node."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        pipes = process.stdin, process.stdout, process.stderr
        self.stdin, self.stdout, self.stderr = cast("Pipes", pipes)  # they were asked for

    @property
    def exit_status(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.returncode

    async def wait_closed(self) -> None:
        """Wait for its end."""
        await self._process.wait()

    def close(self) -> None:
        """End its input, by which it ends; what does not is killed with its session."""
        self.stdin.close()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)


class LocalNode(Node):
    """This machine."""

    def __init__(self, host: str = "this machine") -> None:
        self.host = host

    async def open(self, argv: Sequence[str]) -> LocalProcess:
        """Start a command whose ends one reads and writes oneself, in bytes; close it when done.

        Raises NodeError when it cannot start.
        """
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, limit=1 << 24
            )
        except (OSError, ValueError) as error:
            raise NodeError(f"cannot run {argv[0]}: {error}", host=self.host, step=shown(argv)) from error
        return LocalProcess(process)

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 30.0,
        input: bytes | None = None,  # noqa: A002 - as subprocess.run calls it
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run a command here; see Node.run."""
        begin = time.monotonic()
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL if input is None else asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=None if env is None else {**os.environ, **env},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise NodeError(f"cannot run {argv[0]}: {error}", host=self.host, step=shown(argv)) from error
        try:
            out, err = await asyncio.wait_for(process.communicate(input), timeout)
        except TimeoutError:
            raise NodeError(
                f"{argv[0]} did not end within {timeout:g} s", host=self.host, step=shown(argv)
            ) from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        code = process.returncode if process.returncode is not None else -1
        return Completed(
            tuple(argv),
            code,
            out.decode("utf-8", "replace"),
            err.decode("utf-8", "replace"),
            time.monotonic() - begin,
        )
