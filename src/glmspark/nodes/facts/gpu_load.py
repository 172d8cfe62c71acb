"""The GPU's clock and power while it works for some seconds.

A GB10 can be stuck at a low clock after a crash or with a weak power supply; at rest it looks like any
other. The probe runs where ranks will, so a node needs nothing more for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from glmspark.nodes.facts import Fact
from glmspark.nodes.facts.places import Place

SECONDS = 10


@dataclass(frozen=True)
class Load:
    """What the GPU did under load. clock: MHz, median of the samples; power: watts; teraflops: bfloat16."""

    name: str
    clock: float
    clock_max: float | None
    power: float | None
    temperature: float | None
    teraflops: float


# Runs where torch is, so it is text here and not a function.
PROBE = """\
import json, statistics, subprocess, sys, time
import torch

if not torch.cuda.is_available():
    sys.exit("torch " + torch.__version__ + " finds no GPU here")
seconds = float(sys.argv[1])
ask = ["nvidia-smi", "--query-gpu=name,clocks.sm,clocks.max.sm,power.draw,temperature.gpu",
       "--format=csv,noheader,nounits"]
n = 4096
a = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
b = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
torch.matmul(a, b)
torch.cuda.synchronize()
samples, rounds, begin, due = [], 0, time.monotonic(), seconds / 2
while (passed := time.monotonic() - begin) < seconds:
    for _ in range(50):
        torch.matmul(a, b)
    if passed >= due:
        samples.append(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
        due += 1
    torch.cuda.synchronize()
    rounds += 50
passed = time.monotonic() - begin
print(json.dumps({"samples": samples, "teraflops": 2 * n**3 * rounds / passed / 1e12}))
"""


def parse_load(text: str) -> Load:
    """A Load from what the probe printed last. Raises ValueError for anything else."""
    try:
        data = json.loads(text.strip().splitlines()[-1])
        rows = [[field.strip() for field in sample.splitlines()[0].split(",")] for sample in data["samples"]]
        middle = sorted(rows, key=lambda row: float(row[1]))[len(rows) // 2]
        return Load(
            name=middle[0],
            clock=float(middle[1]),
            clock_max=_number(middle[2]),
            power=_number(middle[3]),
            temperature=_number(middle[4]),
            teraflops=float(data["teraflops"]),
        )
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"the load probe printed something else: {error!r}") from None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def gpu_load(place: Place, seconds: float = SECONDS) -> Fact[Load]:
    """The fact "clock and power under load", measured where ranks run, which has torch."""
    return Fact("GPU under load", place.run(PROBE, f"{seconds:g}", gpu=True), parse_load)
