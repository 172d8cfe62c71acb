"""Make or mend the environment in .venv: what `make serve`, `make test` and `make unit` run first.

    python3 tools/bootstrap.py            # make it, or say within a moment that it stands
    GLMSPARK_VENV=/var/tmp/venv python3 tools/bootstrap.py

This file alone is written so that any Python since 2.7 can read it: an old one must be able to say that it is
too old. The work is in tools/environment/.
"""

import os
import subprocess
import sys

OLDEST = (3, 11)
# Tried in this order when `python3` is too old; the first ones have been out longest and have most wheels.
NEWER = ("python3.12", "python3.13", "python3.11", "python3.14")


def is_new_enough(program):
    """Whether `program` is a Python that starts and is at least OLDEST."""
    code = "import sys; sys.exit(sys.version_info < %r)" % (OLDEST,)
    with open(os.devnull, "w") as nowhere:
        try:
            return subprocess.call([program, "-c", code], stdout=nowhere, stderr=nowhere) == 0
        except OSError:
            return False


def find_newer(works=is_new_enough):
    """The first Python on PATH that is new enough, or None."""
    for program in NEWER:
        if works(program):
            return program
    return None


def refusal(found):
    """What to say to someone whose Python is too old; `found` is a newer one on PATH, or None."""
    text = "error: this is Python %d.%d (%s); glmspark needs %d.%d or newer.\n" % (
        sys.version_info[0], sys.version_info[1], sys.executable, OLDEST[0], OLDEST[1])  # fmt: skip
    if found:
        return text + "  There is a newer one: make serve PYTHON=%s\n" % found
    return text + (
        "  Install one and name it: make serve PYTHON=/path/to/python3.12\n"
        "  (on Debian 12 and Ubuntu 24.04 or later: apt-get install python3 python3-venv)\n"
    )


def main():
    if sys.version_info < OLDEST:
        newer = find_newer()
        if newer and "--exact-python" not in sys.argv:
            os.execvp(newer, [newer] + sys.argv)
        sys.stderr.write(refusal(newer))
        return 1
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from tools.environment.main import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
