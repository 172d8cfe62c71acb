"""Settings for all unit tests."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is slow now and then; pytest-timeout catches what hangs. Examples are drawn anew in every
# run: few in each are many over time. `make unit ARGS="--hypothesis-profile long"` draws many at once.
settings.register_profile("unit", deadline=None, max_examples=40)
settings.register_profile("long", deadline=None, max_examples=2000)
settings.load_profile("unit")

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Each of several workers imports the tests' files beginning with others.

    All collect the same files at the same time: in a fresh clone each would compile all of them. So each
    compiles a share, and then finds the others' done.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    asked = [Path(word.partition("::")[0]).resolve() for word in session.config.args]
    files = [
        path
        for path in sorted(HERE.rglob("test_*.py"))
        if any(path.is_relative_to(one) or path == one for one in asked)
    ]
    begin = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in (*files[begin:], *files[:begin]):
        name = ".".join(path.relative_to(HERE.parents[1]).with_suffix("").parts)
        with contextlib.suppress(Exception):  # collecting it says why
            importlib.import_module(name)
