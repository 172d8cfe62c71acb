"""Test layers side by side."""

from __future__ import annotations

import sys

import pytest

from tools.layers import commands, run


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_each_layer_is_a_pytest_of_its_own() -> None:
    first, second = commands(["tests/engine", "tests/lab"], ["-x"])
    assert first == [sys.executable, "-m", "pytest", "tests/engine", "-x"]
    assert second[3] == "tests/lab"


@pytest.mark.parametrize(("codes", "code"), [((0, 0), 0), ((1, 0), 1), ((0, 5), 0), ((5, 5), 5), ((5, 2), 2)])
def test_one_layer_that_fails_fails_all(
    codes: tuple[int, int], code: int, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run([python(f"print('layer {one}'); raise SystemExit({one})") for one in codes]) == code
    seen = capfdbinary.readouterr().out.decode()
    assert all(f"layer {one}" in seen for one in codes)
