"""Speculation on CUDA: one script that trains glm-tiny's drafter, serves with it and prints a table.

    python tests/gpu/speculation_cuda.py [--drafter DIR] [--at-once N] [--limit SECONDS] [--work DIR]
        [--out DIR] [CASE ...]

Run by hand on a machine with one GPU (docs/gpu-runs.md records the runs). N cases run at once (default 6),
each in a process of its own; what is timed waits until nothing else computes. After --limit seconds in all
(default 330) what still runs is ended and the table printed. What a case leaves goes to --out (default $OUT,
where that is set) as soon as it ends. With --drafter nothing is trained from nothing: the one in DIR is
served. Exits with 1 if anything is wrong. --list: all cases; some run only when they are named.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.gpu.speculation_cases import CASES, TRAINED  # noqa: E402 - the path is set first: this is run as a script


def run_one(name: str, work: Path, until: float) -> dict[str, Any]:
    """A case in a process of its own; its row. until: the time at which it is ended."""
    case, log = CASES[name], work / f"{name}.log"
    environment = {
        **os.environ, **case.env, "PYTHONUNBUFFERED": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
    }  # fmt: skip
    words = [sys.executable, __file__, "--case", name, "--work", str(work)]
    start = time.time()
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(max(1.0, until - time.time()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
    text = log.read_text(errors="replace")
    rows = [line.removeprefix("RESULT ") for line in text.splitlines() if line.startswith("RESULT ")]
    row = json.loads(rows[-1]) if rows else {"ok": False, "note": f"exit {process.returncode}"}
    row |= {"seconds": time.time() - start}
    tables = [line for line in text.splitlines() if line.startswith("TABLE ")]
    said = f"{'ok ' if row['ok'] else 'BAD'} {name} ({row['seconds']:.0f} s): {row['note']}"
    print("\n".join([said, *tables]), flush=True)
    if not row["ok"]:
        print(text[-5000:], flush=True)
    return row


def run_all(
    names: list[str], work: Path, at_once: int, until: float, out: Path | None
) -> dict[str, dict[str, Any]]:
    """Every case, in the order of the table; one that needs another waits for it, and falls with it."""
    rows: dict[str, dict[str, Any]] = {}
    waiting, changed = list(names), threading.Condition()

    def ready() -> str | None:
        return next((n for n in waiting if CASES[n].needs not in names or CASES[n].needs in rows), None)

    def work_on() -> None:
        while True:
            with changed:
                changed.wait_for(lambda: not waiting or ready() is not None)
                if not waiting:
                    return
                name = ready()
                assert name is not None
                waiting.remove(name)
            need = rows.get(CASES[name].needs)
            drafter = (work / "drafter/config.json").exists()
            if time.time() > until - 20:
                row = {"ok": False, "note": "not begun: the time was up", "seconds": 0}
            elif need is not None and not drafter:
                row = {"ok": False, "note": f"{CASES[name].needs!r} failed", "seconds": 0}
            else:
                row = run_one(name, work, until)
            if (
                CASES[name].arguments.get("drafter") == "drafter"
                and not (work / "drafter/config.json").exists()
            ):
                (work / "failed").touch()  # others wait for it
            with changed:
                rows[name] = row
                if out is not None:
                    leave(work, out, name, row)
                changed.notify_all()

    threads = [threading.Thread(target=work_on) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rows


def compare(rows: dict[str, dict[str, Any]]) -> None:
    """Cases that must say the same: where they do not, the row says how many prompts differ."""
    for name, row in rows.items():
        other = rows.get(CASES[name].same_as, {})
        if not row.get("tokens") or not other.get("tokens"):
            continue
        # A case without the deepest prompts has fewer.
        differ = sum(a != b for a, b in zip(row["tokens"], other["tokens"], strict=False))
        row["ok"] = row["ok"] and differ == 0
        row["note"] += f"; {differ} of {len(row['tokens'])} unlike {CASES[name].same_as!r}"


def leave(work: Path, out: Path, name: str, row: dict[str, Any]) -> None:
    """What is worth keeping of a case: its drafter with its losses, its row without tokens, and its log."""
    out.mkdir(parents=True, exist_ok=True)
    drafter = CASES[name].arguments.get("drafter", "")
    if drafter and (work / drafter).is_dir():
        shutil.copytree(work / drafter, out / drafter, dirs_exist_ok=True)
        shutil.copy(work / f"{drafter}-training/training.jsonl", out / f"{drafter}-losses.jsonl")
    stem = name.replace(" ", "-").replace(",", "")
    kept = {key: value for key, value in row.items() if key != "tokens"}
    (out / f"{stem}.json").write_text(json.dumps(kept, indent=1))
    if (work / f"{name}.log").is_file():
        text = (work / f"{name}.log").read_text(errors="replace")
        (out / f"{stem}.log").write_text(text[-200_000:])


def main() -> int:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="CASE")
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--limit", type=float, default=330)
    parser.add_argument("--drafter", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT"))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.list:
        print("\n".join(CASES))
        return 0
    if args.case:
        case = CASES[args.case]
        print("RESULT " + json.dumps(case.function(case, args.work)), flush=True)
        return 0
    given = {TRAINED} if args.drafter else set()
    names = args.names or [name for name, case in CASES.items() if not case.asked and name not in given]
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"no case is called {unknown[0]!r}; see --list")
    work = args.work or Path(tempfile.mkdtemp(prefix="speculation-"))
    work.mkdir(parents=True, exist_ok=True)
    if args.drafter:
        shutil.copytree(args.drafter, work / "drafter")
    out = Path(args.out) if args.out else None
    rows = run_all(names, work, args.at_once, time.time() + args.limit, out)
    compare(rows)
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True)
    print(f"\n{listed.stdout.splitlines()[0].partition(' (')[0]}")
    for name in names:
        row = rows[name]
        print(f"{'ok ' if row['ok'] else 'BAD'} {name:38} {row['seconds']:4.0f} s  {row['note']}")
    return int(any(not row["ok"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
