"""The engine's patches on CUDA: one script, many cases, each in a process of its own, the table printed last.

    python tests/gpu/engine_cuda.py [--at-once N] [--list] [CASE ...]

Run by hand on a machine with one or more GPUs (docs/gpu-runs.md records the runs). N cases run at once on
each GPU (default 2); those that need two GPUs come last and run where there are two. Each case prints what it
saw; cases that must say the same tokens are compared at the end. Exits with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.gpu.engine_cases import CASES  # noqa: E402 - the path is set first: this is run as a script

LIMIT = 240  # seconds a case may take


# --- running them -------------------------------------------------------------------------------------------


def run_one(name: str, gpus: str, folder: Path) -> dict[str, Any]:
    """A case in a process of its own; its row."""
    case, log = CASES[name], folder / "log"
    environment = {
        **os.environ, **case.env, "CUDA_VISIBLE_DEVICES": gpus, "PYTHONUNBUFFERED": "1",
        "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
    }  # fmt: skip
    words = [sys.executable, __file__, "--case", name, "--folder", str(folder)]
    start = time.time()
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
    text = log.read_text(errors="replace")
    rows = [line.removeprefix("RESULT ") for line in text.splitlines() if line.startswith("RESULT ")]
    row = json.loads(rows[-1]) if rows else {"ok": False, "note": f"exit {process.returncode}"}
    tested = [
        line[line.index("NVFP4 experts by") :] for line in text.splitlines() if "NVFP4 experts by" in line
    ]
    row["note"] = "; ".join([row["note"], *tested[:1]])
    row |= {"seconds": time.time() - start, "log": text}
    print(f"{'ok ' if row['ok'] else 'BAD'} {name} ({row['seconds']:.0f} s): {row['note']}", flush=True)
    if not row["ok"]:
        print(text[-6000:], flush=True)
    return row


def run_all(names: list[str], devices: list[str], at_once: int) -> dict[str, dict[str, Any]]:
    """Every case: those of one GPU on whichever is free, then those of two one by one."""
    rows: dict[str, dict[str, Any]] = {}
    waiting: queue.Queue[str] = queue.Queue()
    for name in names:
        if CASES[name].gpus == 1:
            waiting.put(name)

    def work(device: str) -> None:
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                return
            with tempfile.TemporaryDirectory() as folder:
                rows[name] = run_one(name, device, Path(folder))

    threads = [threading.Thread(target=work, args=(device,)) for device in devices * at_once]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names:
        if CASES[name].gpus == 2 and len(devices) >= 2:
            with tempfile.TemporaryDirectory() as folder:
                rows[name] = run_one(name, ",".join(devices[:2]), Path(folder))
    return rows


def compare(rows: dict[str, dict[str, Any]]) -> None:
    """Cases that must say the same: where they do not, the row says how many prompts differ."""
    for name, row in rows.items():
        other = rows.get(CASES[name].same_as, {})
        if not row.get("tokens") or not other.get("tokens"):
            continue
        differ = sum(a != b for a, b in zip(row["tokens"], other["tokens"], strict=True))
        # Two ranks sum in another order: a near-tie in bf16 may turn.
        row["ok"] = row["ok"] and differ <= (1 if CASES[name].gpus == 2 else 0)
        row["note"] += f"; {differ} of {len(row['tokens'])} unlike {CASES[name].same_as!r}"


def main() -> int:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="CASE")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.list:
        print("\n".join(CASES))
        return 0
    if args.case:
        case = CASES[args.case]
        print("RESULT " + json.dumps(case.function(case, args.folder)), flush=True)
        return 0
    names = args.names or list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"no case is called {unknown[0]!r}; see --list")
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True)
    devices = [str(n) for n in range(len(listed.stdout.splitlines()))]
    rows = run_all(names, devices, args.at_once)
    compare(rows)
    print(f"\n{listed.stdout.splitlines()[0].partition(' (')[0]}, {len(devices)} in all")
    for name in names:
        row = rows.get(name, {"ok": True, "note": f"not run: it takes {CASES[name].gpus} GPUs", "seconds": 0})
        print(f"{'ok ' if row['ok'] else 'BAD'} {name:38} {row['seconds']:4.0f} s  {row['note']}")
    return int(any(not row["ok"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
