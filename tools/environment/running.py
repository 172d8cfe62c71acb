"""Run a long command: output into the log, what it does on the screen, and no orphan left behind."""

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

PR_SET_PDEATHSIG = 1
# A terminal gets one line that changes; a file or a CI log gets a new line this often.
LINE_EVERY_S = 10.0
TICK_S = 0.5


class Screen:
    """Where progress is told: standard error, so that standard output stays the command's own."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.terminal = self.stream.isatty()
        self.start = time.monotonic()
        self._open = False

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._clear()
        self._write(f"[{time.monotonic() - self.start:5.1f} s] {text}\n")

    def passing(self, text: str) -> None:
        """Show a line that the next one replaces; only on a terminal."""
        if self.terminal:
            self._clear()
            width = os.get_terminal_size(self.stream.fileno()).columns or 80
            self._write(f"[{time.monotonic() - self.start:5.1f} s] {text}"[: width - 1])
            self._open = True

    def _clear(self) -> None:
        if self._open:
            self._write("\r\x1b[K")
            self._open = False

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except BrokenPipeError:
            # Whoever read this has gone; the set-up itself goes on.
            self.stream = open(os.devnull, "w")  # noqa: SIM115, PTH123 (open for the rest of the process)
            self.terminal = False


def _die_with_parent() -> None:
    """In the child: end when the parent ends, however it ends, so that no pip works on unseen."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run(
    command: Sequence[str],
    *,
    log: Path,
    screen: Screen,
    see: Callable[[str], None],
    doing: Callable[[], str],
    environment: Mapping[str, str],
    keep: Sequence[int] = (),
) -> tuple[int, str]:
    """Run a command to its end.

    Args:
        command: the argv.
        log: gets all output, appended.
        screen: where progress is shown.
        see: is given each line of output.
        doing: says in a few words what is being done now.
        environment: the command's environment variables.
        keep: file descriptors that the command inherits (the lock).

    Returns:
        The exit status (negative: the signal) and all output.
    """
    seen: list[str] = []
    with log.open("a", encoding="utf-8") as file:
        file.write(f"\n$ {' '.join(command)}\n")
        file.flush()
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            pass_fds=tuple(keep),
            preexec_fn=_die_with_parent,  # noqa: PLW1509 (this program has one thread)
        )
        if child.stdout is None:
            raise AssertionError("the pipe was asked for")
        try:
            _follow(child.stdout.fileno(), file, seen, screen, see, doing)
        except BaseException:
            # Ctrl-C reaches the child by itself, a signal to this process alone does not. pip tidies up.
            child.terminate()
            try:
                child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                child.kill()
            raise
        finally:
            child.stdout.close()
        return child.wait(), "".join(seen)


def _follow(
    pipe: int,
    log: TextIO,
    seen: list[str],
    screen: Screen,
    see: Callable[[str], None],
    doing: Callable[[], str],
) -> None:
    told, told_at, part = "", time.monotonic(), ""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            if selector.select(TICK_S):
                data = os.read(pipe, 65536)
                if not data:
                    break
                text = data.decode("utf-8", "replace")
                log.write(text)
                log.flush()
                seen.append(text)
                *lines, part = (part + text).split("\n")
                for line in lines:
                    see(line)
            now = doing()
            screen.passing(now)
            if not screen.terminal and time.monotonic() - told_at >= LINE_EVERY_S:
                screen.say(now if now != told else f"{now}, still")
                told, told_at = now, time.monotonic()
    if part:
        see(part)
