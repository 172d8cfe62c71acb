"""The load format `spark` against fio and the other loaders, on one checkpoint, cold, side by side.

    python -m bench.loader [--dir DIR] [--rounds 3] [--json]

Makes a 5.3 GB checkpoint of GLM-5.2-shaped tensors in DIR (default: a folder in /tmp), and removes it. Every
contender reads all of it in a process of its own and hands each tensor to a consumer that copies it, as a
model's parameters do; before each, the files are put out of the page cache. fio reads the same files with the
same block size and as many requests at once as `spark`. Printed: the median of the rounds.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.glm_slice import write

MIB = 2**20
ROOT = Path(__file__).parents[1]
LIMITS = {"page cache": 64 * MIB, "memory": 512 * MIB}


def shards(directory: Path) -> list[Path]:
    """The checkpoint's files."""
    return sorted(directory.glob("*.safetensors"))


# --- what is measured ---------------------------------------------------------------------------------------


def put_out(directory: Path) -> None:
    """Write the files to disk and drop their pages from the page cache."""
    for path in shards(directory):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def cached(descriptors: list[int]) -> int:
    """Bytes of the files that the page cache holds: cachestat(2), Linux 6.5."""
    libc = ctypes.CDLL(None, use_errno=True)
    everything, found = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    total = 0
    for descriptor in descriptors:
        if libc.syscall(451, descriptor, everything, found, 0):
            raise OSError(ctypes.get_errno(), "cachestat needs Linux 6.5")
        total += found[0] * resource.getpagesize()
    return total


class CacheWatch(threading.Thread):
    """The most page cache that the files have while it runs."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self._files = [os.open(path, os.O_RDONLY) for path in shards(directory)]
        self._done = threading.Event()
        self.most = 0

    def run(self) -> None:
        """Look twenty times a second."""
        while not self._done.wait(0.05):
            self.most = max(self.most, cached(self._files))

    def finish(self) -> tuple[int, int]:
        """(the most, what is left)."""
        self._done.set()
        self.join()
        left = cached(self._files)
        for descriptor in self._files:
            os.close(descriptor)
        return max(self.most, left), left


def status(field: str) -> int:
    """A size in /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


# --- contenders ---------------------------------------------------------------------------------------------


def stream(contender: str, directory: Path) -> Iterator[Any]:
    """The tensors, as the contender reads them."""
    import torch

    files = list(map(str, shards(directory)))
    if contender.startswith("spark"):
        from glmspark.engine.loader.spark import read_tensors, settings_of
        from glmspark.engine.shards import read_header

        mode = contender.partition(" ")[2] or "auto"
        wanted = [tensor for file in shards(directory) for tensor in read_header(file)]
        for _, tensor in read_tensors(wanted, torch.device("cpu"), settings_of({"mode": mode})):
            yield tensor
            del tensor
    elif contender == "vllm default":
        from vllm.model_executor.model_loader.weight_utils import safetensors_weights_iterator

        for _, tensor in safetensors_weights_iterator(files, use_tqdm_on_load=False):
            yield tensor
            del tensor
    elif contender == "fastsafetensors":
        from fastsafetensors import SafeTensorsFileLoader, SingleGroup

        # As vLLM's iterator does it, a file at a time, here for the CPU.
        for file in files:
            loader = SafeTensorsFileLoader(SingleGroup(), device="cpu", nogds=True)
            loader.add_filenames({0: [file]})
            buffers = loader.copy_files_to_device()
            for name in loader.get_keys():
                yield buffers.get_tensor(name)
            buffers.close()
            loader.close()
    else:
        raise SystemExit(f"no contender is called {contender}")


def read(contender: str, directory: Path) -> dict[str, Any]:
    """Read everything once; bytes, seconds, and the memory it took beside what was there."""
    import logging

    import torch

    said: list[str] = []
    if contender.startswith("spark"):
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("vllm.glmspark.loader").addHandler(handler)
        logging.getLogger("vllm.glmspark.loader").setLevel(logging.INFO)
        import glmspark.engine.loader.spark  # noqa: F401 - imports are not reading
    elif contender == "vllm default":
        import vllm.model_executor.model_loader.weight_utils  # noqa: F401
    scratch = torch.zeros(256 * MIB, dtype=torch.uint8)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = status("VmRSS")
    began, used, total = time.monotonic(), time.process_time(), 0
    for tensor in stream(contender, directory):
        raw = tensor.reshape(-1).view(torch.uint8)
        scratch[: raw.numel()].copy_(raw)
        total += raw.numel()
        del raw, tensor
    return {
        "seconds": time.monotonic() - began,
        "cpu": time.process_time() - used,
        "bytes": total,
        "memory": status("VmHWM") - before,
        "said": said[-1] if said else "",
    }


def fio(mode: str, directory: Path) -> dict[str, Any]:
    """The same files by fio: `spark`'s block size and number of requests, each job its part of every file."""
    from glmspark.engine.loader.reader import Settings

    settings = Settings()
    jobs = settings.threads
    share = 100 // jobs
    words = ["fio", "--name=read", "--rw=read", "--ioengine=psync", "--thread", f"--bs={settings.block}"]
    words += [f"--numjobs={jobs}", f"--offset_increment={share}%", f"--size={share}%", "--group_reporting"]
    words += [f"--direct={int(mode == 'direct')}", "--invalidate=1", "--output-format=json", "--readonly"]
    words += ["--filename=" + ":".join(map(str, shards(directory))), "--file_service_type=sequential"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]
    seconds = found["runtime"] / 1000
    return {"seconds": seconds, "cpu": 0.0, "bytes": found["io_bytes"], "memory": 0, "said": ""}


def contenders() -> list[str]:
    """Those that can run here."""
    found = ["fio direct", "fio buffered", "spark direct", "spark buffered", "spark", "vllm default"]
    return found + [name for name in ("fastsafetensors",) if importlib.util.find_spec(name)]


def measure(contender: str, directory: Path) -> dict[str, Any]:
    """One contender, cold."""
    put_out(directory)
    watch = CacheWatch(directory)
    watch.start()
    words = [sys.executable, "-m", "bench.loader", "--one", contender, "--dir", str(directory)]
    # Threads of a copy that spin for the next one would take the cores that reading needs.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        words,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    most, left = watch.finish()
    row = json.loads(done.stdout.splitlines()[-1])
    return {**row, "rate": row["bytes"] / row["seconds"], "page_cache": most, "page_cache_left": left}


# --- the table ----------------------------------------------------------------------------------------------


def summary(rounds: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Medians of the rates, and the worst of everything else."""
    return {
        name: {
            "rate": statistics.median(row["rate"] for row in rows),
            "best": max(row["rate"] for row in rows),
            **{
                key: max(row[key] for row in rows)
                for key in ("cpu", "memory", "page_cache", "page_cache_left")
            },
            "said": [row["said"] for row in rows if row["said"]],
        }
        for name, rows in rounds.items()
    }


def ratio(rounds: dict[str, list[dict[str, Any]]], one: str, other: str) -> float:
    """The median of the rounds' ratios: neighbours in time meet the same disk."""
    pairs = zip(rounds[one], rounds[other], strict=True)
    return statistics.median(a["rate"] / b["rate"] for a, b in pairs)


def report(rounds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The table and the bars."""
    found = summary(rounds)
    faster = max(("direct", "buffered"), key=lambda mode: found[f"spark {mode}"]["rate"])
    modes = [
        "buffered" if ": buffered" in line or "(buffered" in line else "direct"
        for line in found["spark"]["said"]
    ]
    bars = {
        "spark direct / fio direct": (ratio(rounds, "spark direct", "fio direct"), 0.9),
        "spark buffered / fio buffered": (ratio(rounds, "spark buffered", "fio buffered"), 0.9),
        "spark / its faster mode": (ratio(rounds, "spark", f"spark {faster}"), 0.9),
        "spark / vllm default": (ratio(rounds, "spark", "vllm default"), 1.0),
    }
    ours = [row for name, row in found.items() if name.startswith("spark")]
    limits = {key: max(row[key] for row in ours) for key in ("page_cache", "memory")}
    return {"rows": found, "faster": faster, "chosen": modes, "bars": bars, "limits": limits}


def show(result: dict[str, Any]) -> None:
    """Print it for people."""
    print(f"{'':16} {'GB/s':>6} {'best':>6} {'cpu':>7} {'memory':>9} {'page cache':>11} {'left':>9}")
    for name, row in result["rows"].items():
        sizes = [f"{row[key] / MIB:,.0f} MiB" for key in ("memory", "page_cache", "page_cache_left")]
        rates = f"{row['rate'] / 1e9:6.2f} {row['best'] / 1e9:6.2f} {row['cpu']:5.1f} s"
        print(f"{name:16} {rates} {sizes[0]:>9} {sizes[1]:>11} {sizes[2]:>9}")
    print(f"\nfaster here: {result['faster']}; spark chose {', '.join(result['chosen'])}")
    for name, (value, bar) in result["bars"].items():
        print(f"{name:32} {value:5.2f}  (bar {bar})")
    for name, limit in (("page_cache", LIMITS["page cache"]), ("memory", LIMITS["memory"])):
        seen = f"{result['limits'][name] / MIB:5.0f} MiB"
        print(f"{'most ' + name + ' of spark':32} {seen}  (bar {limit // MIB} MiB)")


def main() -> None:
    """Make, measure, print, remove."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, help="where to make the checkpoint, or one that is there")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--experts", type=int, default=192, help="27 MB each")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        name, _, mode = args.one.partition(" ")
        print(json.dumps(fio(mode, args.dir) if name == "fio" else read(args.one, args.dir)))
        return
    if shutil.which("fio") is None:
        raise SystemExit("fio is not here: tools/debian-packages.sh bench --install")
    there = args.dir is not None and (args.dir / "config.json").is_file()
    directory = args.dir or Path(tempfile.mkdtemp(prefix="glmspark-loader-")) / "glm-slice"
    try:
        if not there:
            size = write(directory, experts=args.experts)
            print(f"{size / 1e9:.2f} GB in {len(shards(directory))} files in {directory}", file=sys.stderr)
        rounds: dict[str, list[dict[str, Any]]] = {}
        for number in range(args.rounds):
            for contender in contenders():
                row = measure(contender, directory)
                rounds.setdefault(contender, []).append(row)
                print(f"round {number + 1}, {contender}: {row['rate'] / 1e9:.2f} GB/s", file=sys.stderr)
        result = report(rounds)
    finally:
        if not there:
            shutil.rmtree(directory, ignore_errors=True)
            if args.dir is None:
                shutil.rmtree(directory.parent, ignore_errors=True)
    if args.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    else:
        show(result)


if __name__ == "__main__":
    main()
