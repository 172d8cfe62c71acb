"""MLA decoding of engine/attention on CUDA: accuracy against float64, speed against FlashMLA and TRITON_MLA.

    python tests/gpu/attention_cuda.py [--tune] [SECTION ...]      sections: accuracy sparse dense

Run by hand on one GPU that nothing else uses (docs/gpu-runs.md records the runs). Each section is a process
of its own; the tables come last. --tune also times block shapes that are not chosen; their kernels are
compiled beforehand in processes beside one another. Exits with 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch  # noqa: E402 - the path is set first: this is run as a script

from glmspark.engine.attention import decode  # noqa: E402
from glmspark.engine.attention.layout import LATENT, Cache, Format  # noqa: E402
from glmspark.engine.attention.shapes import Shape, shape_for  # noqa: E402
from tests.gpu import attention_cases as cases  # noqa: E402
from tests.gpu.attention_cases import DEVICE, TOP_K, microseconds, scale_of  # noqa: E402

SPARSE_SHAPES = [
    Shape(16, 32, 4, 5), Shape(16, 64, 8, 3), Shape(16, 64, 8, 5), Shape(16, 128, 8, 3), Shape(32, 32, 8, 3),
    Shape(32, 32, 8, 5), Shape(32, 64, 8, 3), Shape(64, 32, 8, 3), Shape(64, 64, 8, 3), Shape(64, 64, 4, 3),
]  # fmt: skip
DENSE_SHAPES = [
    Shape(16, 32, 4, 3), Shape(16, 32, 4, 5), Shape(16, 64, 4, 3), Shape(16, 64, 4, 5), Shape(16, 64, 8, 5),
    Shape(32, 64, 8, 3), Shape(64, 32, 4, 5), Shape(64, 64, 8, 2), Shape(64, 64, 8, 3), Shape(64, 64, 4, 3),
]  # fmt: skip
GB10 = {kind: shape_for(kind, 16, 101_376) for kind in Format}
CONTEXT = 131_072

Row = tuple[str, str]


def name_of(shape: Shape) -> str:
    """A shape in a table."""
    return f"{shape.pairs}x{shape.keys} w{shape.warps} s{shape.stages}"


def timed(call: Callable[[int], Any], variants: int) -> float | None:
    """Microseconds, or None where the device cannot hold it (too much shared memory)."""
    try:
        return microseconds(call, variants)
    except Exception as error:
        if "shared memory" in str(error) or "OutOfResources" in type(error).__name__:
            return None
        raise


def others_time(make: Callable[[], Callable[[int], Any] | None], variants: int) -> float | None:
    """Microseconds of what we compare with, or None where it does not run here; why is in the log."""
    try:
        call = make()
        return microseconds(call, variants) if call else None
    except Exception:  # noqa: BLE001 - ours is measured all the same
        traceback.print_exc()
        return None


def late() -> bool:
    """Whether what is left of --seconds is for the cases alone, without tuning."""
    return time.time() > float(os.environ.get("TUNE_UNTIL", "inf"))


def accuracy() -> Iterator[Row]:
    """How far everything is from float64."""
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills what is allocated with NaN
    for name, run in (("dense and its ranks", cases.dense_accuracy), ("sparse", cases.sparse_accuracy)):
        errors = run()
        verdict = "ok" if not errors.bad else "BAD " + "; ".join(errors.bad[:6])
        yield (
            f"{name}, {errors.cases} cases",
            f"out {errors.out:.1e}, LSE {errors.lse:.1e} at most: {verdict}",
        )


def sparse(tune: bool) -> Iterator[Row]:
    """Top-2048 of 128K tokens a row, out of eight layers' caches in turn."""
    held = cases.make_cache(Format.PACKED, 64, CONTEXT, 8)
    for heads, rows in [(64, 1), (64, 2), (64, 4), (64, 8), (64, 16), (64, 64), (16, 1), (16, 8), (16, 16)]:
        yield f"sparse, {heads} heads, {rows} rows", sparse_row(held, heads, rows, tune)


def sparse_row(held: list[Cache], heads: int, rows: int, tune: bool) -> str:
    """Ours and FlashMLA's time for so many rows."""
    query = cases.queries(rows, heads, 64)
    slots = [torch.randperm(CONTEXT, device=DEVICE)[:TOP_K] for _ in range(rows)]
    chosen = torch.stack(slots).to(torch.int32)
    counts = torch.full((rows,), TOP_K, dtype=torch.int32, device=DEVICE)

    def attend(number: int, shape: Shape | None = None, splits: int | None = None) -> decode.Result:
        return decode.sparse(query, held[number], chosen, counts, scale_of(64), shape=shape, splits=splits)

    took = timed(attend, len(held))
    text = f"ours {took:.1f} us" if took else "ours does not fit"
    theirs = others_time(lambda: cases.flash_sparse(query, held, chosen), len(held))
    text += (
        f", FlashMLA {theirs:.1f} us, ratio {(took or 0) / theirs:.2f}"
        if theirs
        else ", FlashMLA does not run"
    )
    if not tune or late():
        return text
    ways = [
        (shape, splits)
        for shape in SPARSE_SHAPES
        for splits in (None, 4, 8, 16, 32)
        if not splits or rows * splits < 600
    ]
    return f"{text}; {best(attend, ways, len(held))}"


def dense(tune: bool) -> Iterator[Row]:
    """Rows over whole contexts; the share of the device's copy bandwidth that reading the keys makes."""
    copied = cases.bandwidth()
    yield "bandwidth of a copy", f"{copied / 1e12:.2f} TB/s"
    one_row: dict[tuple[Format, int, int], float] = {}
    plain, fp8, million = Format.PLAIN, Format.FP8, 1_048_576
    for kind, heads, requests, context, rows in [
        (plain, 16, 1, 8192, 1), (plain, 16, 1, 65_536, 1), (plain, 16, 1, 262_144, 1),
        (plain, 16, 1, million, 1), (plain, 16, 8, 65_536, 1), (plain, 64, 1, 65_536, 1),
        (plain, 64, 1, million, 1), (fp8, 16, 1, 65_536, 1), (fp8, 16, 1, million, 1),
        (fp8, 64, 1, 262_144, 1), (plain, 8, 1, 262_144, 1), (plain, 8, 1, 262_144, 8),
        (plain, 16, 1, 65_536, 8), (plain, 16, 1, 262_144, 4),
    ]:  # fmt: skip
        took, text = dense_row(kind, heads, requests, context, rows, copied, tune)
        if took and rows == 1:
            one_row[kind, heads, context] = took
        elif took and (kind, heads, context) in one_row:
            text = f"{took / one_row[kind, heads, context]:.2f} times one row's; {text}"
        yield f"dense {kind.name}, {heads} heads, {requests} x {context}, {rows} rows", text
        torch.cuda.empty_cache()


def dense_row(
    kind: Format, heads: int, requests: int, context: int, rows: int, copied: float, tune: bool
) -> tuple[float | None, str]:
    """Ours, and for one row TRITON_MLA's time."""
    layers = max(1, min(4, 4 * 131_072 // (context * requests)))
    held = cases.make_cache(kind, 64, requests * context, layers)
    query = cases.queries(requests * rows, heads, 64)
    starts = torch.arange(requests + 1, dtype=torch.int32, device=DEVICE) * rows
    lengths = torch.full((requests,), context, dtype=torch.int32, device=DEVICE)
    asked = decode.Requests(cases.pages_of(requests, context), starts, lengths, rows, context)

    def attend(number: int, shape: Shape | None = None, splits: int | None = None) -> decode.Result:
        return decode.dense(query, held[number], asked, scale_of(64), shape=shape, splits=splits)

    size = requests * context * (LATENT + 64) * held[0].latent.element_size()
    took = timed(attend, layers)
    if not took:
        return None, "ours does not fit"
    text = f"ours {took:.0f} us, {size / took / 1e-6 / copied:.2f} of the bandwidth"
    if rows == 1:
        theirs = others_time(lambda: cases.stock_dense(query, held, asked.block_table, context), layers)
        text += (
            f"; TRITON_MLA {theirs:.0f} us, {theirs / took:.2f} times ours"
            if theirs
            else "; TRITON_MLA does not run"
        )
    if tune and not late():
        units = decode.device_limits(DEVICE)[0]
        ways = [(shape, splits) for shape in [*DENSE_SHAPES, GB10[kind]] for splits in (None, 2 * units)]
        text += "; " + best(attend, ways, layers)
    return took, text


def best(attend: Callable[..., decode.Result], ways: list[tuple[Shape, int | None]], variants: int) -> str:
    """The fastest of the ways, and those whose results are not what the chosen one's are."""
    right = attend(0)[0].float()
    found: list[tuple[float, str]] = []
    wrong: list[str] = []
    for shape, splits in ways:
        name = f"{name_of(shape)} k{splits or 'auto'}"
        took = timed(functools.partial(attend, shape=shape, splits=splits), variants)
        if took is None:
            continue
        found.append((took, name))
        off = (attend(0, shape, splits)[0].float() - right).norm() / right.norm()
        if not off <= 1e-2:
            wrong.append(f"BAD {name} off by {float(off):.1e}")
    fastest = ", ".join(f"{name} {took:.1f}" for took, name in sorted(found)[:4])
    return "; ".join([f"best: {fastest}", *wrong])


def compile_beforehand(number: int, of: int, tune: bool) -> None:
    """Compile a part of the kernels, on small inputs of the same kinds."""
    shared = decode.device_limits(DEVICE)[1]
    wanted = [
        (is_sparse, kind, rope, shape_for(kind, pairs, shared))
        for is_sparse, kind, rope in cases.KINDS
        for pairs in (16, 32, 64)
    ]
    if tune:
        wanted += [(True, Format.PACKED, 64, shape) for shape in SPARSE_SHAPES]
        wanted += [
            (False, kind, 64, shape)
            for kind in (Format.PLAIN, Format.FP8)
            for shape in [*DENSE_SHAPES, GB10[kind]]
        ]
    length = torch.tensor([TOP_K], dtype=torch.int32, device=DEVICE)
    slots = torch.arange(TOP_K, dtype=torch.int32, device=DEVICE)[None]
    starts = torch.tensor([0, 1], dtype=torch.int32, device=DEVICE)
    for is_sparse, kind, rope, shape in list(dict.fromkeys(wanted))[number::of]:
        (held,) = cases.make_cache(kind, rope, 4096)
        query = cases.queries(1, 16, rope)
        asked = decode.Requests(cases.pages_of(1, 4096), starts, length, 1, TOP_K)
        try:
            if is_sparse:
                for splits in (1, 2):
                    decode.sparse(query, held, slots, length, scale_of(rope), shape=shape, splits=splits)
            else:
                decode.dense(query, held, asked, scale_of(rope), shape=shape)
        except Exception as error:  # noqa: BLE001 - it will say so again, where it is timed
            print(f"{kind.name} {name_of(shape)}: {error!r}"[:300], flush=True)
    torch.cuda.synchronize()


SECTIONS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "accuracy": lambda _: accuracy(),
    "sparse": sparse,
    "dense": dense,
}


def run_section(name: str, tune: bool) -> int:
    """A section in this process: its rows, then 1 if anything went wrong."""
    wrong = 0
    try:
        for title, text in SECTIONS[name](tune):
            print(f"ROW {title:44} {text}", flush=True)
            wrong |= "BAD" in text
    except Exception:  # noqa: BLE001 - it is printed, and the table still comes
        traceback.print_exc()
        print(f"ROW {name:44} BAD: it ended early", flush=True)
        wrong = 1
    return wrong


def main() -> int:
    """Compile, run every section in a process of its own, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], metavar="SECTION")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--seconds", type=float, default=1e6, help="no case begins to tune after so many")
    parser.add_argument("--limit", type=float, default=600, help="everything ends after so many seconds")
    parser.add_argument("--section", help=argparse.SUPPRESS)
    parser.add_argument("--compile", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.compile:
        number, of = map(int, args.compile.split("/"))
        compile_beforehand(number, of, args.tune)
        return 0
    if args.section:
        return run_section(args.section, args.tune)
    began = time.time()
    environment = {
        **os.environ, "PYTHONUNBUFFERED": "1", "VLLM_NO_USAGE_STATS": "1",
        "TUNE_UNTIL": str(began + args.seconds),
    }  # fmt: skip
    me = [sys.executable, __file__, *(["--tune"] if args.tune else [])]
    names = args.sections or list(SECTIONS)
    running: list[subprocess.Popen[str]] = []
    over = threading.Event()

    def end() -> None:
        over.set()
        for process in running:
            process.kill()

    clock = threading.Timer(args.limit, end)
    clock.daemon = True
    clock.start()
    helpers = max(1, min(12, (os.cpu_count() or 4) - 2))
    for number in range(helpers):
        words = [*me, "--compile", f"{number}/{helpers}"]
        running.append(subprocess.Popen(words, env=environment, text=True))
    for process in running:
        process.wait()
    print(f"compiled after {time.time() - began:.0f} s", flush=True)
    rows, wrong = [], 0
    for name in names:
        if over.is_set():
            rows.append(f"{name:44} not run: the time was over")
            continue
        process = subprocess.Popen(
            [*me, "--section", name],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running.append(process)
        assert process.stdout is not None
        for line in process.stdout:  # told at once, for where time runs out; and again in the table
            print(line, end="", flush=True)
            if line.startswith("ROW "):
                rows.append(line.removeprefix("ROW ").rstrip())
        wrong |= process.wait() != 0
        if over.is_set():
            rows.append(f"{name:44} cut: the time was over")
        print(f"{name} ended after {time.time() - began:.0f} s", flush=True)
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("\n".join(rows))
    return int(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
