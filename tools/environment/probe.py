"""Run by the environment's own Python: which packages of PyTorch's family break with this torch.

    .venv/bin/python tools/environment/probe.py torchvision torchaudio

Prints one JSON object, package -> what went wrong; packages that import well or are not there are not in it.
Each import is tried in a child of its own: a library built for another torch can end the whole process.
"""

import importlib
import importlib.util
import json
import os
import sys


def attempt(package: str) -> str | None:
    """What goes wrong on importing a package after torch, or None."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(package)
            text = ""
        except BaseException as error:  # noqa: BLE001 (whatever it is, it is the answer)
            text = f"{type(error).__name__}: {error}".splitlines()[0]
        os.write(into, text.encode()[:4000])
        os._exit(0)
    os.close(into)
    with os.fdopen(out) as reader:
        text = reader.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        return f"the import ended the process (status {status})"
    return text or None


def main(packages: list[str]) -> None:
    """Try each package and print what failed."""
    import torch

    there = [package for package in packages if importlib.util.find_spec(package)]
    failures = {package: why for package in there if (why := attempt(package))}
    print(json.dumps({"torch": torch.__version__, "failures": failures}))


if __name__ == "__main__":
    main(sys.argv[1:])
