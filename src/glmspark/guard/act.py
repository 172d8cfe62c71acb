"""Doing what was decided: memory by the kernel's settings, deployments only through their agents.

Each kind of work has a thread of its own that exists from the start: a drop takes seconds, and a stop must
not wait for it, nor for a thread that cannot be made any more.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import stat
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .config import Config
from .decide import Action
from .deployments import Deployed
from .files import Trouble, say

_CREDENTIALS = struct.Struct("3i")
"""pid, uid, gid of who listens on a socket (unix(7))."""
_ASK = 2.0
_STOP = 60.0
Done = Callable[[Action, str], None]


def ask_agent(home: str, request: dict[str, Any], timeout: float = _ASK) -> dict[str, Any] | None:
    """What the agent in a deployment's directory answers; None where none does."""
    try:
        directory = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(timeout)
            # Through /proc, as a socket's path may be no longer than 107 bytes.
            one.connect(f"/proc/self/fd/{directory}/agent.sock")
            # A user's link may lead to any socket that root can reach: it must be his own that listens.
            said = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            if _CREDENTIALS.unpack(said)[1] != os.fstat(directory).st_uid:
                return None
            one.sendall(json.dumps(request).encode() + b"\n")
            with one.makefile("rb") as lines:
                answer = json.loads(lines.readline(1 << 20))
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(directory)
    return answer if isinstance(answer, dict) else None


def stop_reason(one: Deployed, action: Action, node: str, at: float) -> dict[str, Any]:
    """The reason as the deployment's records hold it."""
    return {
        "what": f"the guard on {node} stopped it: {action.why}",
        "rank": one.rank,
        "node": node,
        "exit_code": None,
        "signal": None,
        "seen": json.dumps(action.reading),
        "next": f"`glmspark guard` shows {node}'s memory; free some, or lower engine.kv_cache_memory or "
        f"max_num_seqs; then `glmspark restart {one.name}`: it stays down until then",
        "at": at,
        "by": "guard",
        "kind": "memory",
    }


def agent_command(home: str, words: Sequence[str], *, python: str) -> list[str] | None:
    """The command that runs the agent's own program; None where it is not there."""
    program = Path(home) / "agent.pyz"
    if not program.exists():
        return None
    return [python, "-I", str(program), *words]


def resume_command(ranks: str, *, python: str) -> list[str] | None:
    """The command that brings back deployments that shall survive a restart of the node; None where no agent
    was ever shipped there. ranks: the directory with the agents' archives."""
    programs = sorted(Path(ranks).glob("agent-*.pyz"), key=lambda one: one.lstat().st_mtime)
    return [python, "-I", str(programs[-1]), "resume"] if programs else None


def owner_of(directory: str, program: str) -> int:
    """The user whose program lies in his directory. Raises Trouble unless both are his, and no links.

    The guard is root and the directory is a user's: through a link he could have it run what lies anywhere,
    as whoever owns that place.
    """
    about, found = os.lstat(directory), os.lstat(program)
    if not stat.S_ISDIR(about.st_mode) or not stat.S_ISREG(found.st_mode) or found.st_uid != about.st_uid:
        raise Trouble(f"{program} is not a program of who owns {directory}")
    return about.st_uid


def run_as_owner(
    argv: Sequence[str], program: str, directory: str, timeout: float, *, state: str, owner: int | None = None
) -> int | None:
    """Run a command as who owns a directory, with his HOME; its exit code, None where it did not end.

    program: the file in `argv` that is run; see owner_of. state: glmspark's state directory for it. owner:
    the only user as whom it may be run: the paths are a user's, who can have them lead elsewhere at any time.
    Raises OSError or Trouble where it may not be run.
    """
    uid = owner_of(directory, program)
    if owner is not None and uid != owner:
        raise Trouble(f"{program} is of user {uid}, not of user {owner} as config.json says")
    environment = {key: text for key, text in os.environ.items() if key in ("PATH", "LANG")}
    environment["GLMSPARK_STATE_DIR"] = state
    become: dict[str, Any] = {}
    if os.geteuid() == 0 and uid != 0:
        import pwd  # here, since a stop by the socket needs none of it

        him = pwd.getpwuid(uid)
        groups = os.getgrouplist(him.pw_name, him.pw_gid)
        become = {"user": him.pw_uid, "group": him.pw_gid, "extra_groups": groups}
        environment |= {"HOME": him.pw_dir, "USER": him.pw_name, "LOGNAME": him.pw_name}
    elif "HOME" in os.environ:
        environment["HOME"] = os.environ["HOME"]
    try:
        with subprocess.Popen(
            list(argv),
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            umask=0o022,
            **become,
        ) as process:
            try:
                as_usual(process.pid)
                return process.wait(timeout)
            finally:
                process.kill()
    except (OSError, subprocess.SubprocessError) as error:
        say(f"{argv[0]} {argv[-1]}: {error}")
        return None


def as_usual(pid: int) -> None:
    """Take from a child what the guard's unit gives: it is for the guard alone. An engine that is brought
    back would else run before others, and be the last that the kernel kills."""
    with contextlib.suppress(OSError, ValueError):
        os.setpriority(os.PRIO_PROCESS, pid, 0)
        path = Path(f"/proc/{pid}/oom_score_adj")
        if int(path.read_text()) < 0:
            path.write_text("0")


class Hands:
    """Does what is decided. done: told of each action and how it went, from another thread."""

    def __init__(self, config: Config, done: Done, *, python: str = "python3") -> None:
        self._config = config
        self._done = done
        self._python = python
        self._memory: queue.SimpleQueue[tuple[Action, Deployed | None]] = queue.SimpleQueue()
        self._agents: queue.SimpleQueue[tuple[Action, Deployed | None]] = queue.SimpleQueue()
        for work in (self._memory, self._agents):
            threading.Thread(target=self._work, args=(work,), daemon=True).start()

    def take(self, action: Action, one: Deployed | None) -> None:
        """Have an action done."""
        memory = action.kind in ("drop-page-cache", "compact")
        (self._memory if memory else self._agents).put((action, one))

    def _work(self, work: queue.SimpleQueue[tuple[Action, Deployed | None]]) -> None:
        while True:
            action, one = work.get()
            begin = time.monotonic()
            try:
                said = self._do(action, one)
            except (OSError, Trouble, KeyError) as error:  # KeyError: a user that the system does not know
                said = f"failed: {error}"
            self._done(action, f"{said} ({time.monotonic() - begin:.2f} s)")

    def _do(self, action: Action, one: Deployed | None) -> str:
        if action.kind == "drop-page-cache":
            return _set(self._config.drop_caches, "1")
        if action.kind == "compact":
            return _set(self._config.compact, "1")
        if one is None:
            return "failed: the deployment is gone"
        if action.kind == "stop":
            return self._stop(action, one)
        return self._admission(action, one)

    def _admission(self, action: Action, one: Deployed) -> str:
        request = {
            "do": "admission",
            "open": action.kind == "open-admission",
            "reason": {"what": action.why, "seen": json.dumps(action.reading), "by": "guard"},
        }
        answer = ask_agent(one.home, request)
        return "the agent was told" if answer is not None else "failed: the agent does not answer"

    def _stop(self, action: Action, one: Deployed) -> str:
        reason = stop_reason(one, action, self._config.node, time.time())
        if ask_agent(one.home, {"do": "stop", "reason": reason}) is not None:
            return "the agent stops it"
        argv = agent_command(one.home, ["stop", one.name, "--keep"], python=self._python)
        if argv is None:
            return "failed: no agent answers, and its program is not there"
        state = str(Path(one.home).parents[1])
        code = run_as_owner(argv, argv[2], one.home, _STOP, state=state, owner=self._config.owner)
        return (
            "stopped by the agent's program" if code == 0 else f"failed: the agent's program left with {code}"
        )


def _set(path: str, value: str) -> str:
    with contextlib.ExitStack() as stack:
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        stack.callback(os.close, handle)
        os.write(handle, value.encode())
    return "done"
