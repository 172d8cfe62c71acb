"""The agent as one file, and the scripts that bring it to a node."""

from __future__ import annotations

import functools
import io
import zipfile
from pathlib import Path

from glmspark.launch import node_agent

_MAIN = """\
import sys
if sys.version_info < (3, 10):
    print('{"ok": false, "error": "Python 3.10 or newer is needed, this is %d.%d", "step": "run the agent", '
          '"next": "install python3 of Ubuntu 22.04 or newer"}' % sys.version_info[:2])
    sys.exit(1)
from node_agent.__main__ import main
sys.exit(main(sys.argv[1:]))
"""

WHERE = """printf '%s\\n' "${GLMSPARK_STATE_DIR:-$HOME/.local/state/glmspark}/ranks" """

SHIP = """\
set -eu
umask 077
base=${GLMSPARK_STATE_DIR:-$HOME/.local/state/glmspark}/ranks
agent=$base/agent-$1.pyz
if [ -e "$agent" ]; then
  cat > /dev/null
else
  mkdir -p -- "$base"
  temporary=$(mktemp -- "$base/.agent.XXXXXXXX")
  trap 'rm -f -- "$temporary"' EXIT
  cat > "$temporary"
  arrived=$(sha256sum < "$temporary")
  [ "${arrived%% *}" = "$1" ] || { echo 'the agent did not arrive whole' >&2; exit 1; }
  find "$base" -maxdepth 1 -name 'agent-*.pyz' -mtime +7 -delete
  mv -f -- "$temporary" "$agent"
  trap - EXIT
fi
printf '%s\\n' "$agent"
"""


@functools.cache
def archive() -> bytes:
    """The agent as one zip archive that Python runs; the same bytes for the same source."""
    packed = io.BytesIO()
    sources = sorted(Path(node_agent.__file__).parent.glob("*.py"))
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in [("__main__.py", _MAIN.encode())] + [
            (f"node_agent/{source.name}", source.read_bytes()) for source in sources
        ]:
            file.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return packed.getvalue()
