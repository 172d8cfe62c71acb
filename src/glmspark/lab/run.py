"""Running the lab's commands: every process carries the lab's marker, every failure its command and words."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from glmspark.errors import GlmsparkError
from glmspark.lab.record import MARK, LabHome

_INHERITED = ("TMPDIR", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class LabError(GlmsparkError):
    """Something about the lab failed or is not there."""


@dataclass(frozen=True)
class Runner:
    """Runs commands of one lab, for one node or for the machine."""

    home: LabHome
    host: str | None = None

    def environment(self) -> dict[str, str]:
        """The whole environment of a command: of the caller's only where temporary files go and
        how the network outside is reached."""
        own = {"PATH": PATH, "LC_ALL": "C.UTF-8", "HOME": str(self.home.path), MARK: str(self.home.path)}
        return own | {name: os.environ[name] for name in _INHERITED if name in os.environ}

    def run(self, argv: Sequence[str], *, step: str, timeout: float = 60.0) -> str:
        """Run a command to its end and return what it printed. LabError where it fails or takes longer."""
        code, out, err = self.try_run(argv, step=step, timeout=timeout)
        if code != 0:
            raise LabError(
                f"{step}: {argv[0]} left with {code}",
                host=self.host,
                step=" ".join(argv),
                seen=(err.strip() or out.strip())[-2000:] or None,
                next="`glmspark lab down` clears what is left; then try again",
            )
        return out

    def run_all(self, commands: Sequence[Sequence[str]], *, step: str) -> None:
        """Run commands one after the other; the first that fails ends it."""
        for argv in commands:
            self.run(argv, step=step)

    def try_run(self, argv: Sequence[str], *, step: str, timeout: float = 60.0) -> tuple[int, str, str]:
        """Run a command: exit code, standard output, standard error. LabError where it cannot run at all."""
        try:
            done = subprocess.run(
                list(argv),
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise LabError(
                f"{step}: {argv[0]} did not end within {timeout:g} s", host=self.host, step=" ".join(argv)
            ) from None
        except OSError as error:
            raise LabError(
                f"{step}: cannot run {argv[0]}: {error.strerror}", host=self.host, step=" ".join(argv)
            ) from error
        return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")

    def follow(
        self, argv: Sequence[str], *, step: str, timeout: float, report: Callable[[str], None]
    ) -> None:
        """Run a command that takes a while; report is given each line as it is printed. Fails as `run`."""
        try:
            process = subprocess.Popen(
                list(argv),
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise LabError(
                f"{step}: cannot run {argv[0]}: {error.strerror}", host=self.host, step=" ".join(argv)
            ) from error
        last: deque[str] = deque(maxlen=15)
        watch = threading.Timer(timeout, process.kill)
        watch.start()
        try:
            assert process.stdout is not None  # noqa: S101 - a pipe was asked for
            for line in process.stdout:
                last.append(line.rstrip())
                report(line.rstrip())
            code = process.wait()
        finally:
            watch.cancel()
            if process.poll() is None:
                process.kill()
                process.wait()
        if code != 0:
            raise LabError(
                f"{step}: {argv[0]} left with {code}",
                host=self.host,
                step=" ".join(argv),
                seen="\n".join(last),
            )

    def start(self, argv: Sequence[str], *, log: Path, step: str) -> subprocess.Popen[bytes]:
        """Start a command that outlives the caller, in a session of its own, output appended to `log`."""
        try:
            with log.open("ab") as sink:
                return subprocess.Popen(
                    list(argv),
                    env=self.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=sink,
                    start_new_session=True,
                    cwd="/",
                )
        except OSError as error:
            raise LabError(
                f"{step}: cannot start {argv[0]}: {error.strerror}", host=self.host, step=" ".join(argv)
            ) from error
