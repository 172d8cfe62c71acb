"""A package of ours that runs on nodes where nothing else of glmspark is: one zip archive, put there once."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from glmspark.nodes.node import Node, as_root

__all__ = ["Archive"]

# Read by whatever python3 is there, so nothing newer than Python 3.0 may stand in it.
_MAIN = """\
import sys
if sys.version_info < (3, 10):
    print({refusal!r}.replace("VERSION", "%d.%d" % sys.version_info[:2]))
    sys.exit(1)
from {module} import main
sys.exit(main(sys.argv[1:]))
"""

# $1 directory, $2 name, $3 digest. A program that runs opens its archive again for each module it imports
# late, so an archive that a process was started from stays, and so does what was last wanted in a week.
_SHIP = """\
set -eu
umask 077
base=$1
case $base in
  /*) ;;
  *) base=${GLMSPARK_STATE_DIR:-$HOME/.local/state/glmspark}/$base ;;
esac
archive=$base/$2-$3.pyz
if [ -e "$archive" ]; then
  cat > /dev/null
  touch -c -- "$archive"
else
  mkdir -p -- "$base"
  temporary=$(mktemp -- "$base/.$2.XXXXXXXX")
  trap 'rm -f -- "$temporary"' EXIT
  cat > "$temporary"
  arrived=$(sha256sum < "$temporary")
  [ "${arrived%% *}" = "$3" ] || { echo "the $2 did not arrive whole" >&2; exit 1; }
  sync -- "$temporary"
  mv -f -- "$temporary" "$archive"
  trap - EXIT
  find "$base" -maxdepth 1 -name ".$2.????????" -mtime +0 -delete
  find "$base" -maxdepth 1 -name "$2-*.pyz" -mtime +6 | while IFS= read -r old; do
    printf '%s\\n' "$old" | grep -qsF -f - /proc/[0-9]*/cmdline || rm -f -- "$old"
  done
fi
printf '%s\\n' "$archive"
"""


class Archive:
    """One such package.

    name: what its file and errors call it. entry: the module of the package whose `main(words) -> exit code`
    is run. refusal: what the JSON line holds, besides error, step and next, that it prints on a Python older
    than 3.10.
    """

    def __init__(self, name: str, package: ModuleType, entry: str, refusal: Mapping[str, Any]) -> None:
        self.name = name
        self._package = package
        self._entry = entry
        self._refusal = {
            **refusal,
            "error": "Python 3.10 or newer is needed, this is VERSION",
            "step": f"run the {name}",
            "next": "install a newer python3, such as that of Ubuntu 22.04",
        }

    @functools.cached_property
    def data(self) -> bytes:
        """The archive; the same bytes for the same source."""
        if self._package.__file__ is None:
            raise ValueError(f"{self._package.__name__} has no files")
        directory = Path(self._package.__file__).parent
        main = _MAIN.format(refusal=json.dumps(self._refusal), module=f"{directory.name}.{self._entry}")
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr(zipfile.ZipInfo("__main__.py"), main, zipfile.ZIP_DEFLATED)
            for source in sorted(directory.rglob("*.py")):
                name = f"{directory.name}/{source.relative_to(directory)}"
                file.writestr(zipfile.ZipInfo(name), source.read_bytes(), zipfile.ZIP_DEFLATED)
        return packed.getvalue()

    @property
    def digest(self) -> str:
        """SHA-256 of the archive in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()

    async def ship(self, node: Node, directory: str, *, sudo: bool = False) -> str:
        """Put the archive onto a node that has not this version of it, and say where it lies there.

        directory: absolute, or below glmspark's state directory on the node. Versions that a process runs
        from, or that were shipped in the last week, stay beside it. Raises NodeError.
        """
        argv = [*as_root(sudo), "sh", "-c", _SHIP, "ship", directory, self.name, self.digest]
        done = await node.must(argv, f"ship the {self.name}", input=self.data)
        return done.stdout.strip().splitlines()[-1]
