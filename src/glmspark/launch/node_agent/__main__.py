"""Subcommands, each with one JSON line (or several) on standard output; Trouble is one, with exit code 1.

What only the agent itself needs is imported where it is started: the others answer in half the time.
"""

from __future__ import annotations

import sys
from pathlib import Path

from .commands import clean, ready, status, stop
from .files import Home, Trouble, base, full, put
from .follow import follow
from .reap import reap


def main(words: list[str]) -> int:
    """Run a subcommand: its name, then a deployment's name and options."""
    do, rest = (words[0], words[1:]) if words else ("", [])
    flags = {word for word in rest if word.startswith("--")}
    values = dict(word.split("=", 1) for word in flags if "=" in word)
    names = [word for word in rest if not word.startswith("--")]
    name = names[0] if names else None
    home = Home(base() / name) if name else None
    try:
        if do == "start" and home:
            from .start import kept, start

            return start(home, kept(home) if "--again" in flags else sys.stdin.buffer.read())
        if do == "follow" and home:
            at, lines = values.get("--at", ""), int(values.get("--lines", "-1"))
            return follow(home, leash="--leash" in flags, at=at, lines=lines, once="--once" in flags)
        if do == "ready" and home:
            return ready(home, sys.stdin.buffer.read())
        if do == "stop" and home:
            return stop(home, keep="--keep" in flags)
        if do == "status":
            return status(name, record="--record" in flags)
        if do == "resume":
            from .start import resume

            return resume()
        if do == "clean":
            return clean(name, dry="--dry-run" in flags)
        if do == "reap":
            return reap(Home(Path(names[0])), int(names[1]))
        raise Trouble(f"no such command: {' '.join(words)}", step="agent")
    except Trouble as trouble:
        put({"ok": False, **trouble.fields})
    except OSError as error:
        put({"ok": False, **full(error, do).fields})
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
