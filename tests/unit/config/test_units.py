import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.config.units import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256MiB", 256 * 2**20),
        ("2 GiB", 2 * 2**30),
        (" 1.5GiB ", 3 * 2**29),
        ("1GB", 10**9),
        ("1B", 1),
        (4096, 4096),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "MiB", "-1MiB", "0MiB", 0, -5, "1e3MiB", "1,5GiB", "9999999TiB", True, None, 1.5, [], "٣MiB"]
)
def test_not_sizes(text):
    with pytest.raises(ValueError, match=r"size"):
        parse_size(text)


@pytest.mark.parametrize(("text", "meant"), [("256Mi", "256MiB"), ("2Gib", "2GiB"), ("1gb", "1GB")])
def test_unknown_unit_names_the_nearest(text, meant):
    with pytest.raises(ValueError, match=f"did you mean {meant}"):
        parse_size(text)


@given(st.integers(1, 2**60))
def test_bytes_stay_exact(size):
    assert parse_size(size) == size
    if size < 10**15:
        assert parse_size(f"{size}B") == size


@given(st.integers(1, 2**60))
def test_format_is_within_rounding(size):
    text = format_size(size)
    assert abs(parse_size(text) - size) <= max(size * 0.051, 0)
    assert format_size(-size) == "-" + text


@given(st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.booleans()))
def test_anything_is_a_size_or_a_value_error(value):
    with contextlib.suppress(ValueError):
        assert 0 < parse_size(value) <= 2**60
