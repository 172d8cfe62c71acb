"""Time and memory of `glmspark inspect` on a 405 GB checkpoint of headers: python bench/inspecting.py"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.headers import write

BAR_SECONDS, BAR_BYTES = 10.0, 500 * 2**20


def main() -> int:
    """Print one line of JSON; the exit code is 1 where a bar is missed."""
    name = sys.argv[1] if len(sys.argv) > 1 else "glm-5.2-int4-int8mix"
    with tempfile.TemporaryDirectory() as folder:
        path = write(name, Path(folder) / name)
        begun = time.monotonic()
        command = [sys.executable, "-m", "glmspark", "inspect", str(path), "--tp", "4", "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        seconds = time.monotonic() - begun
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = used.ru_maxrss * 1024
    seen = json.loads(done.stdout)
    print(
        json.dumps(
            {
                "checkpoint": name,
                "tensors": seen["tensors"],
                "bytes": seen["bytes"],
                "seconds": round(seconds, 2),
                "cpu_seconds": round(used.ru_utime + used.ru_stime, 2),
                "peak_bytes": peak,
                "problems": len(seen["problems"]),
            }
        )
    )
    return int(seconds > BAR_SECONDS or peak > BAR_BYTES)


if __name__ == "__main__":
    sys.exit(main())
