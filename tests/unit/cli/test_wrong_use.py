"""What is typed wrongly: exit code 2 and, with --json, one JSON object that a program can read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.commands import Glmspark
from tests.unit.cli.test_help import COMMANDS

WITH_JSON = [words for words, one in COMMANDS.items() if any("--json" in p.opts for p in one.params)]


@pytest.mark.parametrize("words", WITH_JSON, ids=" ".join)
def test_an_unknown_option_is_a_json_error(words: tuple[str, ...], glmspark: Glmspark) -> None:
    done = glmspark(*words, "--json", "--no-such-option")
    assert done.code == 2
    assert done.err == ""
    assert "--no-such-option" in done.json["error"]
    assert (done.json["kind"], done.json["next"]) == (
        "UsageError",
        f"`glmspark {' '.join(words)} --help`",
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bogus", "--json"), "No such command 'bogus'"),
        (("lab", "cut", "--json"), "Missing argument"),
        (("up", "--port", "many", "--json"), "Invalid value for '--port'"),
        (("up", "--restarts", "3/30", "--json"), "--restarts is for a cluster"),
        (("up", "--keep-up", "--json"), "--keep-up is for a cluster"),
    ],
)
def test_other_wrong_words(words: tuple[str, ...], said: str, glmspark: Glmspark) -> None:
    done = glmspark(*words)
    assert (done.code, done.err) == (2, "")
    assert said in done.json["error"]


def test_for_people_it_stays_as_it_was(glmspark: Glmspark) -> None:
    done = glmspark("status", "--no-such-option")
    assert (done.code, done.out) == (2, "")
    assert "No such option: --no-such-option" in done.err
    # After -- it is a word of somebody else's command.
    assert "No such option" in glmspark("status", "--no-such-option", "--", "--json").err


def test_exit_codes_are_kept_under_json(glmspark: Glmspark) -> None:
    assert glmspark("status", "--json").code == 3
    assert glmspark("recipe", "list", "--json").code == 0


def test_a_file_that_fails_unforeseen_is_told_with_what_to_do(
    glmspark: Glmspark, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/some/file")

    monkeypatch.setattr("glmspark.launch.record.homes", fails)
    for done in (glmspark("down", "--json"), glmspark("down")):
        assert done.code == 1
        assert "/some/file: Permission denied" in done.out + done.err
        assert "check the owner and mode of /some" in done.out + done.err


def test_an_output_that_is_full_is_told_on_the_other_one() -> None:
    program = Path(sys.executable).with_name("glmspark")
    words = [program, "recipe", "list", "--json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: No space left on device\n"
