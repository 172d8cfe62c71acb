"""The first error in a rank's output, on recorded logs and made-up ones."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from glmspark.launch.faults import FirstError

RECORDED = Path(__file__).with_name("recorded")


def read(text: str) -> FirstError:
    fault = FirstError()
    for line in text.split("\n"):
        fault.feed(line)
    return fault


def test_the_worker_s_error_is_found_not_those_that_followed() -> None:
    fault = read((RECORDED / "tp2-wrong-shape-rank-0.log").read_text())
    assert fault.message == "RuntimeError: start (0) + length (128) exceeds dimension size (64)."
    assert fault.place is not None
    assert "load_row_parallel_weight" in fault.place
    assert fault.said == "WorkerProc failed to start."
    assert fault.tail[-1].startswith("RuntimeError: Engine core initialization failed.")


def test_a_follower_s_error_is_found() -> None:
    fault = read((RECORDED / "tp2-wrong-shape-rank-1.log").read_text())
    assert fault.message is not None
    assert fault.message.startswith("IndexError: start out of range")


def test_a_rank_that_served_has_none() -> None:
    fault = read((RECORDED / "tp2-served-rank-0.log").read_text())
    assert (fault.message, fault.said) == (None, None)
    report = fault.report()
    assert report is not None
    assert "Avg generation throughput" in report.splitlines()[-1]


def test_lines_of_another_process_in_between_are_left_out() -> None:
    fault = read(
        "(Worker_TP0 pid=1) ERROR 01-02 03:04:05 [m.py:9] Traceback (most recent call last):\n"
        '(Worker_TP0 pid=1) ERROR 01-02 03:04:05 [m.py:9]   File "a.py", line 3, in load\n'
        "(EngineCore pid=2) INFO 01-02 03:04:05 [c.py:1] ValueError: not this one\n"
        "(Worker_TP0 pid=1) ERROR 01-02 03:04:05 [m.py:9]     raise KeyError(name)\n"
        "(Worker_TP0 pid=1) ERROR 01-02 03:04:05 [m.py:9] KeyError: 'model.norm.weight'\n"
        "(EngineCore pid=2) ERROR 01-02 03:04:06 [c.py:1] Traceback (most recent call last):\n"
        "(EngineCore pid=2) ERROR 01-02 03:04:06 [c.py:1] Exception: WorkerProc initialization failed\n"
    )
    assert fault.report() == "KeyError: 'model.norm.weight'\n  at File \"a.py\", line 3, in load"


def test_the_text_of_an_exception_may_go_on_over_several_lines() -> None:
    fault = read(
        "Traceback (most recent call last):\n"
        '  File "a.py", line 3, in f\n'
        "    g()\n"
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        "  Value error, no such model [type=value_error]\n"
        "    For further information visit the page\n"
        "INFO:     Shutting down\n"
    )
    assert fault.message == (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        "  Value error, no such model [type=value_error]\n"
        "    For further information visit the page"
    )


def test_what_our_entry_says_without_a_traceback_is_an_error() -> None:
    fault = read(
        "usage: python -m glmspark.engine.serve [model_tag] [options]\n"
        "python -m glmspark.engine.serve: error: unrecognized arguments: --no-such-flag 1\n"
        'nanobind: leaked 12 functions!\n - leaked function "run"\n'
    )
    assert fault.report() == (
        "python -m glmspark.engine.serve: error: unrecognized arguments: --no-such-flag 1"
    )
    fault = read("glmspark.engine.serve: rank 1 of 2: VLLM_HOST_IP is not set\n")
    assert fault.report() == "glmspark.engine.serve: rank 1 of 2: VLLM_HOST_IP is not set"


def test_a_rank_that_cannot_import_is_an_error() -> None:
    assert read("/usr/bin/python3: No module named glmspark.engine\n").message is not None


def test_an_error_line_counts_where_there_is_no_traceback() -> None:
    line = "(MainProcess pid=9) ERROR 01-02 03:04:05 [m.py:315] Worker proc VllmWorker-1 died unexpectedly"
    assert read(f"all is well\n{line}\nbye\n").report() == "Worker proc VllmWorker-1 died unexpectedly"


def test_colours_are_no_part_of_an_error() -> None:
    fault = read("\x1b[31mTraceback (most recent call last):\x1b[0m\n\x1b[31mOSError: gone\x1b[0m\n")
    assert fault.message == "OSError: gone"


def test_nothing_gives_nothing() -> None:
    assert read("").report() is None


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\n"), max_size=60), max_size=40))
def test_any_text_is_read(lines: list[str]) -> None:
    report = read("\n".join(lines)).report()
    assert (report is None) == all(not line.strip() for line in lines)
