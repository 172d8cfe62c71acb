"""Weights between two relays of this machine at full speed: python bench/relaying.py [MIB] [DIRECTORY]

Prints one line of JSON: GB/s encrypted and trusted, CPU seconds a GB of each side, and what the disk of the
same directory writes meanwhile (one file, synced, before and after). Exit code 1 where it is less than
0.5 GB/s and less than 0.8 of what the disk writes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.unit.weights.relays import Relay, new_key, program

BAR_GB_S, BAR_SHARE = 0.5, 0.8


def disk(path: Path, source: Path) -> float:
    """GB/s of writing and syncing a file's bytes, which are in the page cache."""
    size = source.stat().st_size
    begun = time.monotonic()
    with source.open("rb") as reading, path.open("wb") as writing:
        done = 0
        while done < size:
            done += os.sendfile(writing.fileno(), reading.fileno(), done, 1 << 24)
        os.fsync(writing.fileno())
    seconds = time.monotonic() - begun
    path.unlink()
    return size / 1e9 / seconds


def move(folder: Path, source: Path, trusted: bool) -> dict[str, float]:
    """One transfer into an empty directory, until all of it is verified and synced."""
    pyz, key = program(folder), new_key(trusted)
    sizes = {one.name: one.stat().st_size for one in source.iterdir() if one.name[0] != "."}
    giver = Relay(pyz, source, sizes, key, None)
    target = folder / "target"
    taker = Relay(pyz, target, sizes, key, "giver", listen=None)
    begun = time.monotonic()
    taker.upstream("giver", giver.address)
    said = taker.until("done", "failed", seconds=600)
    seconds = time.monotonic() - begun
    assert said["t"] == "done", said
    time.sleep(1.1)  # the last line of progress has the CPU time
    size = sum(sizes.values()) / 1e9
    found = {
        "gb_s": round(size / seconds, 3),
        "giver_cpu_s_gb": round(giver.last["cpu"] / size, 2),
        "taker_cpu_s_gb": round(taker.last["cpu"] / size, 2),
    }
    giver.end()
    taker.end()
    for one in target.iterdir():
        one.unlink()
    for one in source.glob(".*"):
        one.unlink()
    return found


def main() -> int:
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 2048
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as name:
        folder = Path(name)
        source = folder / "source"
        source.mkdir()
        for number in range(2):
            with (source / f"model-{number}.safetensors").open("wb") as file:
                for _ in range(mib // 2):
                    file.write(os.urandom(1 << 20))
                os.fsync(file.fileno())
        found: dict[str, object] = {"mib": mib}
        rates = [disk(folder / "plain", source / "model-0.safetensors")]
        found["encrypted"] = move(folder, source, trusted=False)
        rates.append(disk(folder / "plain", source / "model-1.safetensors"))
        found["trusted"] = move(folder, source, trusted=True)
        rates.append(disk(folder / "plain", source / "model-0.safetensors"))
    found["disk_gb_s"] = [round(one, 3) for one in rates]
    least = min(BAR_GB_S, BAR_SHARE * sum(rates) / len(rates))
    print(json.dumps({**found, "bar_gb_s": round(least, 3)}))
    return int(min(found["encrypted"]["gb_s"], found["trusted"]["gb_s"]) < least)  # type: ignore[index]


if __name__ == "__main__":
    sys.exit(main())
