"""Make a checkpoint of headers and holes by hand: `python -m tools.headers glm-5.2-int4-int8mix --to DIR`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.headers import CHECKPOINTS, write


def main() -> int:
    """The command; its exit code is 0, 1 if the folder cannot be made and 2 for a wrong command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.headers", description=__doc__)
    parser.add_argument("name", choices=CHECKPOINTS)
    parser.add_argument("--to", dest="target", type=Path, required=True, metavar="DIR", help="folder to make")
    arguments = parser.parse_args()
    try:
        write(arguments.name, arguments.target)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
