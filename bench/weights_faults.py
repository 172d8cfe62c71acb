"""Faults of tests/unit/weights/faults.py, and a full disk, twenty times each: bench/weights_faults.py [N]

As root: the disk that gets full is a file system of its own. Prints one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.unit.weights.faults import FAULTS, TOTAL, Scene, happen


def fill_disk(scene: Scene) -> None:
    """The receiver's disk gets full at a random moment; with room again it goes on with what it has."""
    scene.go()
    scene.somewhere()
    filler = scene.target / ".filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1 << 20)):
            pass
    said = scene.receiver.until("done", "failed", seconds=90)
    filler.unlink()
    if said["t"] == "done":  # all of it had its place before
        return
    assert "No space left" in said["error"], said
    assert said["step"] == "write the weights"
    verified = scene.receiver.last.get("verified", 0)
    scene.receiver.kill()
    scene.receiver.start()
    scene.go()
    again = scene.done()
    assert again["received"] + again["reused"] == TOTAL
    assert again["reused"] >= verified


def on_a_small_disk(directory: Path, seed: int) -> None:
    directory.mkdir()
    target = directory / "scene" / "target"
    target.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "none", target], check=True)
    try:
        happen(fill_disk, directory / "scene", seed)
    finally:
        subprocess.run(["umount", target], check=True)


def main() -> int:
    """The exit code is 1 where one was not survived."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    found = {}
    for name in (*FAULTS, "fill disk"):
        good, begun = 0, time.monotonic()
        for seed in range(1000, 1000 + times):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    if name == "fill disk":
                        on_a_small_disk(Path(folder) / "disk", seed)
                    else:
                        happen(name, Path(folder) / "scene", seed)
                except AssertionError as error:
                    print(f"{name}, seed {seed}: {error}", file=sys.stderr)
                else:
                    good += 1
        found[name] = {"good": good, "of": times, "seconds": round(time.monotonic() - begun, 1)}
        print(name, found[name], file=sys.stderr)
    print(json.dumps(found))
    return int(any(one["good"] != one["of"] for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
