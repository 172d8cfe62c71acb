"""The relay as one zip archive that Python runs, put onto a node where it is not yet."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import zipfile
from pathlib import Path

from glmspark.nodes.node import Node, failed
from glmspark.nodes.transport import NodeError
from glmspark.weights import relay

__all__ = ["Program", "archive", "place"]

_MAIN = """\
import sys
if sys.version_info < (3, 10):
    print('{"t": "failed", "error": "Python 3.10 or newer is needed, this is %d.%d", '
          '"step": "run the relay", "next": "install a newer python3"}' % sys.version_info[:2])
    sys.exit(1)
from relay.program import main
sys.exit(main(sys.argv[1:]))
"""

_SHIP = """\
set -eu
umask 077
base=${GLMSPARK_STATE_DIR:-$HOME/.local/state/glmspark}/relay
file=$base/relay-$1.pyz
if [ -e "$file" ]; then
  cat > /dev/null
else
  mkdir -p -- "$base"
  temporary=$(mktemp -- "$base/.relay.XXXXXXXX")
  trap 'rm -f -- "$temporary"' EXIT
  cat > "$temporary"
  arrived=$(sha256sum < "$temporary")
  [ "${arrived%% *}" = "$1" ] || { echo 'the relay did not arrive whole' >&2; exit 1; }
  rm -f -- "$base"/relay-*.pyz
  mv -f -- "$temporary" "$file"
  trap - EXIT
fi
printf '%s\\n' "$file"
"""


@functools.cache
def archive() -> bytes:
    """The archive; the same bytes for the same source."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(zipfile.ZipInfo("__main__.py"), _MAIN, zipfile.ZIP_DEFLATED)
        for source in sorted(Path(relay.__file__).parent.glob("*.py")):
            file.writestr(zipfile.ZipInfo(f"relay/{source.name}"), source.read_bytes(), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


class Program:
    """The relay on one node. python: the one there that runs it. algorithms: the hashes it has."""

    def __init__(self, path: str, python: str, algorithms: tuple[str, ...]) -> None:
        self.path = path
        self.python = python
        self.algorithms = algorithms

    def argv(self, *words: str) -> list[str]:
        """The command for one of its verbs."""
        return [self.python, self.path, *words]


async def place(node: Node, pythons: tuple[str, ...] = ()) -> Program:
    """Ship the relay and choose the Python for it: the first that has blake3, else the system's own.

    pythons: to try besides python3, such as the runtime's. Raises NodeError.
    """
    digest = hashlib.sha256(archive()).hexdigest()
    shipped = await node.must(["sh", "-c", _SHIP, "ship", digest], "ship the relay", input=archive())
    path = shipped.stdout.strip().splitlines()[-1]
    found: Program | None = None
    for python in ("python3", *pythons):
        try:
            done = await node.run([python, path, "algorithms"], timeout=30)
        except NodeError:
            continue
        try:
            said = json.loads(done.stdout.strip().splitlines()[-1]) if done.code == 0 else {}
        except (ValueError, IndexError):
            said = {}
        names = tuple(said.get("names", ()))
        if names and (found is None or ("blake3" in names and "blake3" not in found.algorithms)):
            found = Program(path, python, names)
    if found is None:
        raise failed(node.host, "run the relay", await node.run(["python3", path, "algorithms"]))
    return found
