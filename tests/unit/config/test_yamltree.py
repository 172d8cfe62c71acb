import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.config.yamltree import MAX_BYTES, read_yaml


def test_what_is_read_twice_is_not_shared():
    raw = b"a: {b: [1, {c: 2}]}\na: 3\n"
    first = read_yaml(raw)
    first.data["a"]["b"][1]["c"] = 5
    first.lines.clear()
    first.problems.clear()
    second = read_yaml(raw)
    assert second.data == {"a": {"b": (1, {"c": 2})}}
    assert second.lines
    assert len(second.problems) == 1


def problem(raw: bytes):
    tree = read_yaml(raw)
    assert tree.data is None
    (found,) = tree.problems
    return found


def test_data_and_lines():
    tree = read_yaml(b"a: 1\nb:\n  - x\n  - {c: 2.5}\n'd e': ~\n")
    assert tree.data == {"a": 1, "b": ("x", {"c": 2.5}), "d e": None}
    assert tree.lines["a",] == 1
    assert tree.lines["b", 1] == 4
    assert tree.lines["b", 1, "c"] == 4
    assert tree.lines["d e",] == 5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("on", "on"),
        ("true", True),
        ("FALSE", False),
        ("'true'", "true"),
        ("010", 10),
        ("0x10", 16),
        ("0o10", 8),
        ("1_000", "1_000"),
        ("12:30:00", "12:30:00"),
        ("2024-01-01", "2024-01-01"),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-3", -3),
        (".inf", ".inf"),
        ("", None),
        ("9" * 50, "9" * 50),
    ],
)
def test_scalars_by_the_core_schema(text, value):
    found = read_yaml(f"k: {text}\n".encode()).data["k"]
    if text == "9" * 50:
        assert found == float(text)
    else:
        assert found == value
        assert type(found) is type(value)


def test_repeated_keys_are_all_named_with_the_first_line():
    tree = read_yaml(b"a: 1\nb: {c: 1, c: 2}\na: 3\n")
    assert [(p.line, p.message) for p in tree.problems] == [
        (2, "key 'b.c' is given twice"),
        (3, "key 'a' is given twice"),
    ]
    assert "line 1" in tree.problems[1].hint
    assert tree.data == {"a": 1, "b": {"c": 1}}


@pytest.mark.parametrize(
    ("raw", "line", "words"),
    [
        (b"", None, "empty"),
        (b"  \n\n", None, "empty"),
        (b"# nothing\n", None, "only comments"),
        (b"a: \x00", None, "binary"),
        (b"\x7fELF\x02\x01\x01\x00", None, "binary"),
        (b"a: 1\nb: \xff\n", 2, "not UTF-8"),
        (b"a: 1\nb: \x07\n", 2, "not valid YAML"),
        (b"a:\n\tb: 1\n", 2, "tab"),
        (b"a:\n  b: 1\n\tc: 2\n", 3, "tab"),
        (b"a: 1\n---\nb: 2\n", 2, "more than one"),
        (b"a: &x [1]\nb: *x\n", 1, "anchors"),
        (b"a: *x\n", 1, "anchors"),
        (b"a: !!python/object/apply:os.system [ls]\n", 1, "tag"),
        (b"a: !x 1\n", 1, "tag"),
        (b"? [a]\n: 1\n", 1, "key must be plain"),
        (b"a: 1e999\n", 1, "out of range"),
        (b"a: [1, 2\nb: 3\n", None, "not valid YAML"),
        (b"a: 'open\n", 1, "not valid YAML"),
        (b'a: "\\UFFFFFFFF"', None, "not valid YAML"),
        (b"[" * 40, 1, "nested deeper"),
        (b"x: " + b"a" * MAX_BYTES, None, "larger than"),
    ],
)
def test_each_fault_is_one_problem(raw, line, words):
    found = problem(raw)
    assert words in found.message
    if line is not None:
        assert found.line == line


def test_a_bomb_is_refused_at_its_first_anchor():
    lines = ["a0: &a0 [lol, lol]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)]
    assert problem("\n".join(lines).encode()).line == 1


@given(st.binary(max_size=400))
def test_any_bytes_give_data_or_problems(raw):
    tree = read_yaml(raw)
    assert tree.problems or raw.strip()


@given(st.text(alphabet="abc:-[]{}&*!|>'\"%@`,?#\\ \n\t01", max_size=200))
def test_any_yaml_like_text_gives_data_or_problems(text):
    tree = read_yaml(text.encode())
    assert all(p.message and (p.line is None or 1 <= p.line <= text.count("\n") + 1) for p in tree.problems)
