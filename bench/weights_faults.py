"""Faults of tests/unit/weights/faults.py, twenty times each: python bench/weights_faults.py [N]"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.unit.weights.faults import FAULTS, happen


def main() -> int:
    """One line of JSON; the exit code is 1 where one was not survived."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    found = {}
    for name in FAULTS:
        good, begun = 0, time.monotonic()
        for seed in range(1000, 1000 + times):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    happen(name, Path(folder) / "scene", seed)
                except AssertionError as error:
                    print(f"{name}, seed {seed}: {error}", file=sys.stderr)
                else:
                    good += 1
        found[name] = {"good": good, "of": times, "seconds": round(time.monotonic() - begun, 1)}
    print(json.dumps(found))
    return int(any(one["good"] != one["of"] for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
