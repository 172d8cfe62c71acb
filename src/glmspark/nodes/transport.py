"""How a command reaches a node. Commands are argv lists; quoting, where needed, is the transport's affair."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from glmspark.errors import GlmsparkError
from glmspark.nodes.facts import Fact

T = TypeVar("T")


class NodeError(GlmsparkError):
    """A command on a node could not be run, failed, or printed what its parser does not know."""


@dataclass(frozen=True)
class Completed:
    """A command that ended. seconds: wall time."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str
    seconds: float


class Transport(Protocol):
    """One way to one node."""

    @property
    def host(self) -> str:
        """The node's name as errors show it."""

    def run(self, argv: Sequence[str], *, timeout: float = 30.0) -> Completed:
        """Run a command to its end. Raises NodeError when it cannot start or exceeds `timeout` seconds."""


class Local:
    """This machine."""

    host = "this machine"

    def run(self, argv: Sequence[str], *, timeout: float = 30.0) -> Completed:
        """Run a command here; see Transport.run."""
        begin = time.monotonic()
        try:
            done = subprocess.run(
                list(argv), capture_output=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False
            )
        except subprocess.TimeoutExpired:
            raise NodeError(
                f"{argv[0]} did not end within {timeout:g} s", host=self.host, step=" ".join(argv)
            ) from None
        except OSError as error:
            raise NodeError(
                f"cannot run {argv[0]}: {error.strerror}", host=self.host, step=" ".join(argv)
            ) from error
        return Completed(
            tuple(argv),
            done.returncode,
            done.stdout.decode("utf-8", "replace"),
            done.stderr.decode("utf-8", "replace"),
            time.monotonic() - begin,
        )

    def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        cwd: Path,
        pass_fds: Sequence[int] = (),
        stdin: int | None = None,
        stdout: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command that outlives the caller: in a session of its own, output appended to `log`.

        env: its whole environment. stdin, stdout: file descriptors to use instead of /dev/null and `log`.
        Raises NodeError when it cannot start.
        """
        try:
            with log.open("ab") as sink:
                return subprocess.Popen(
                    list(argv),
                    env=dict(env),
                    cwd=cwd,
                    stdin=subprocess.DEVNULL if stdin is None else stdin,
                    stdout=sink if stdout is None else stdout,
                    stderr=sink,
                    start_new_session=True,
                    pass_fds=pass_fds,
                )
        except OSError as error:
            raise NodeError(
                f"cannot start {argv[0]}: {error.strerror or error}", host=self.host, step=" ".join(argv)
            ) from error


def gather(transport: Transport, fact: Fact[T], *, timeout: float = 30.0) -> T:
    """The value of a fact on a node. Raises NodeError naming node, command and what was printed."""
    done = transport.run(fact.command, timeout=timeout)
    if done.code != 0 and done.code not in fact.partial:
        raise NodeError(
            f"cannot read {fact.name}: the command left with {done.code}",
            host=transport.host,
            step=" ".join(fact.command),
            seen=done.stderr.strip()[-2000:] or None,
        )
    try:
        return fact.parse(done.stdout)
    except ValueError as error:
        raise NodeError(
            f"cannot understand {fact.name}: {error}",
            host=transport.host,
            step=" ".join(fact.command),
            seen=done.stdout[:500],
        ) from error
