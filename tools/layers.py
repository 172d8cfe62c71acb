"""Runs test layers side by side, each a pytest of its own: neither fills two cores alone.

    python -m tools.layers tests/engine tests/lab -- PYTEST-ARGUMENTS

The last layer's output is shown as it comes, the others' when they have ended. Ctrl-C ends all. Exits with
the first code that says of a failure; that a layer has no test of the wanted name is none.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

_NO_TESTS = 5  # pytest's code


def commands(layers: Sequence[str], words: Sequence[str]) -> list[list[str]]:
    """What is run for each layer.

    >>> commands(["tests/lab"], ["-x"])[0][1:]
    ['-m', 'pytest', 'tests/lab', '-x']
    """
    return [[sys.executable, "-m", "pytest", layer, *words] for layer in layers]


def run(every: Sequence[Sequence[str]]) -> int:
    """Run the commands side by side. Returns what they all come to: see above; 130 when interrupted."""
    hidden: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
    try:
        for command in every[:-1]:
            output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - read when the layer has ended
            hidden.append((subprocess.Popen(command, stdout=output, stderr=output), output))
        codes = [subprocess.run(command, check=False).returncode for command in every[-1:]]
        for process, output in hidden:
            codes.append(process.wait())
            _show(output)
    except KeyboardInterrupt:  # the terminal has told the layers, too
        for process, output in hidden:
            process.wait()
            _show(output)
        return 130
    failed = [code for code in codes if code not in (0, _NO_TESTS)]
    return failed[0] if failed else min(codes)


def _show(output: IO[bytes]) -> None:
    output.seek(0)
    while block := output.read(1 << 16):
        sys.stdout.buffer.write(block)
    sys.stdout.flush()


def main() -> int:
    """Run the layers that the command line names."""
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    return run(commands(words[:cut], words[cut + 1 :]))


if __name__ == "__main__":
    sys.exit(main())
