"""What the calibration makes of a row, whose notes and acceptance are other people's words."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.calibrate.__main__ import HERE
from tools.calibrate.rows import (
    aside,
    cases,
    link_of,
    outline_of_row,
    prefill_cases,
    read_rows,
    text_of,
    tokens_of,
)

ROWS = read_rows(HERE / "measurements.jsonl")


@pytest.mark.parametrize(
    ("said", "drafts", "tokens"),
    [
        ("1.146 draft tok/step (57%)", 2, 2.146),
        ("1.63-1.85 draft tok/step", 5, 2.74),
        ("~1.0 draft tok/step greedy (0.68 on natural docs)", 3, 2.0),
        ("82.86% draft acceptance, 4.143 accepted/batch at K5", 5, 5.143),
        ("accept len 5.4-6.0 (88.5-100%)", 5, 5.7),
        ("mean length ~3.0 (66%)", 3, 3.0),
        ("mean length 2.16; per-pos .60/.30/.14/.06/.03/.02", 7, 2.16),
        ("~2.0", 3, 2.0),
        ("2.40 (47%)", 3, 2.4),
        ("96.64% draft acceptance", 4, 4.8656),
        ("814/818 draft tokens accepted", 2, 2.990),
        ("~2.7 tok/cycle", 7, 2.7),
        ("7.87 of 8", 7, 7.87),
        ("63-64%", 7, 5.445),
        ("0.641", 7, 5.487),
        ("2.57 accepted of 5 (51.4%)", 5, 3.57),
        ("", 3, None),
        ("good", 3, None),
    ],
)
def test_tokens_of_a_step(said, drafts, tokens):
    assert tokens_of({"acceptance": said}, drafts) == (
        None if tokens is None else pytest.approx(tokens, 1e-3)
    )


@pytest.mark.parametrize(
    ("notes", "speed", "text"),
    [
        ("prose, greedy, thinking off", 19.6, "prose"),
        ("'fast', natural prose", 23, "prose"),
        ("code, effort low (76 high)", 80, "code"),
        ("coding C1; category mean 68.41", 95.9, "code"),
        ("mnbt 8192; coding median 71.67", 40.2, "mixed"),
        ("prose, effort low, c1; code 60.9", 29.5, "prose"),
        ("code 33.0-34.5; RoCE ~+10% overall", 33.7, "code"),
        ("mnbt 512; peak decode", 37, "structured"),
        ("count-to-100 greedy", 56.5, "structured"),
        (None, 20, "mixed"),
    ],
)
def test_kind_of_text(notes, speed, text):
    assert text_of({"notes": notes, "decode_tok_s": speed}) == text


@pytest.mark.parametrize(
    ("link", "topology", "kind", "gbit"),
    [
        ("1GbE, NCCL socket", None, "tcp", 1),
        ("200G RoCE ports used as NCCL socket (NCCL_IB_DISABLE=1)", None, "tcp", 200),
        ("200G ports as TCP socket", None, "tcp", 200),
        ("2x200G RoCEv2 RDMA (NCCL 2.30.4)", "switched", "roce", 200),
        ("200G RoCE RDMA + b12x RoCEnante all-reduce", None, "one-shot", 200),
        (None, None, "roce", 200),
    ],
)
def test_link(link, topology, kind, gbit):
    found = link_of({"link": link, "topology": topology})
    assert (found.kind, found.gbit) == (kind, gbit)
    assert not found.ring


@pytest.mark.parametrize(
    ("model", "quant", "nbytes"),
    [
        ("GLM-5.2", "EXL3 2.25 bpw", 215e9),
        ("GLM-5.2", "GPTQ W4A16", 434e9),
        ("GLM-5.2", "REAP keep-168 NVFP4", 304e9),
        ("GLM-5.3", "FP8", 756e9),
        ("GLM-5.3-Flash", None, 195e9),
        ("GLM-5.3-Flash", "MXFP4", 175e9),
    ],
)
def test_other_formats_are_understood(model, quant, nbytes):
    found = outline_of_row({"model": model, "quant": quant})
    assert found is not None
    assert found.nbytes == pytest.approx(nbytes, rel=0.05)


def test_other_models_are_not():
    assert outline_of_row({"model": "GLM-6", "quant": "NVFP4"}) is None
    assert outline_of_row({"model": "GLM-5.2", "quant": "secret"}) is None


def test_set_aside_by_rule():
    why = [reason for row in ROWS if (reason := aside(row)) and row.get("concurrency") == 1]
    assert sorted(set(why)) == [
        "a GPU's clock was stuck",
        "includes the time of the prompt",
        "no drafter is named, and the speed depends on the text: something drafted",
        "second-hand",
    ]
    assert len(why) == 6


def test_all_rows_are_read():
    single = [case for case in cases(ROWS) if case.row.get("concurrency") in (None, 1)]
    stated = [case for case in single if case.tokens]
    assert (len(ROWS), len(stated), len(single) - len(stated)) == (158, 35, 61)
    assert len(list(prefill_cases(ROWS))) == 53


WORDS = ("acceptance", "link", "topology", "notes", "quant", "spec_method", "kv_dtype", "engine", "model")


@settings(max_examples=25)
@given(st.dictionaries(st.sampled_from(WORDS), st.text() | st.none()))
def test_words_may_say_anything(changes):
    row = ROWS[70] | changes
    list(cases([row]))
    aside(row)


@pytest.mark.parametrize(
    "line", ["[]", "{}", '{"source_url": "x", "tp": "4"}', '{"source_url": "x", "concurrency": true}']
)
def test_what_is_no_row_is_named(tmp_path, line):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"source_url": "x"}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"rows\.jsonl:2"):
        read_rows(file)
