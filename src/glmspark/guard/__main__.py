"""Subcommands: run, supervise, state, once; each with --home DIR."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from .files import Trouble, put


def default_home() -> str:
    """The guard's directory of this user: below the state directory, or where systemd's guard has its own."""
    state = os.environ.get("GLMSPARK_STATE_DIR")
    own = Path(state or "~/.local/state/glmspark").expanduser().absolute() / "guard"
    installed = Path("/var/lib/glmspark/guard")
    return str(own if (own / "state.json").exists() or not installed.exists() else installed)


def main(words: list[str]) -> int:
    """Run a subcommand; its exit code. What goes wrong is one JSON line."""
    do, rest = (words[0], words[1:]) if words else ("", [])
    try:
        if rest and (rest[0] != "--home" or len(rest) != 2):
            raise Trouble(
                f"not understood: {' '.join(rest)}", next="guard.pyz run|supervise|state|once --home DIR"
            )
        home = os.path.abspath(rest[1]) if rest else default_home()  # noqa: PTH100
        # Imported as they are needed: the supervisor shall stay small.
        if do == "run":
            from .run import run

            return run(home)
        if do == "supervise":
            from .supervise import supervise

            return supervise(home)
        if do == "once":
            from .run import once

            put(json.dumps(once(home)))
            return 0
        if do == "state":
            put(Path(home, "state.json").read_text(encoding="utf-8").strip())
            return 0
        raise Trouble(
            f"no such command: {do or '(none)'}", next="guard.pyz run|supervise|state|once --home DIR"
        )
    except Trouble as trouble:
        put(json.dumps({"ok": False, "error": str(trouble), "next": trouble.next}))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        put(json.dumps({"ok": False, "error": f"{where}{error.strerror or error}", "next": None}))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
