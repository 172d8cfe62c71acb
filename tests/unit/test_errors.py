from glmspark.errors import GlmsparkError, StateError, UsageError, error_block


def test_a_block_has_only_what_is_known():
    assert error_block(GlmsparkError("it broke")) == "error: it broke"
    full = GlmsparkError(
        "it broke\nbadly", host="spark1", step="start", seen="line 1\nline 2\n", next="mend it"
    )
    assert error_block(full) == (
        "error: it broke\n  badly\n  host: spark1\n  step: start\n"
        "  seen: line 1\n        line 2\n  next: mend it"
    )


def test_colour_adds_nothing_but_escapes():
    error = GlmsparkError("it broke", next="mend it")
    coloured = error_block(error, colour=True)
    for escape in ("\x1b[1;31m", "\x1b[2m", "\x1b[0m"):
        assert escape in coloured
        coloured = coloured.replace(escape, "")
    assert coloured == error_block(error)


def test_json_and_exit_codes():
    assert GlmsparkError("x", host="h").to_json() == {
        "error": "x",
        "kind": "GlmsparkError",
        "host": "h",
        "step": None,
        "seen": None,
        "next": None,
    }
    assert (GlmsparkError("x").exit_code, StateError("x").exit_code, UsageError("x").exit_code) == (1, 1, 2)
    assert str(UsageError("x")) == "x"
