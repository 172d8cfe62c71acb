"""What holds for all tests."""

from __future__ import annotations

import gc
import signal

import pytest

# Started in the background by a script, this process inherits an ignored SIGINT, and so would every program
# that a test starts and interrupts as a person does with Ctrl-C. What this process handles is at its default
# again in those that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Collecting makes hundreds of thousands of objects that stay to the end. Python's collector would walk them
# again and again, then and in every test that makes many of its own.
gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave what was collected out of garbage collection from here on."""
    gc.freeze()
    gc.enable()
