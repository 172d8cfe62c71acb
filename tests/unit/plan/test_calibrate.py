"""What `make calibrate` makes of rows: who drafted, whose statement a constant is, what is no row."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from glmspark.plan.speed.constants import PRIORS
from glmspark.plan.speed.text import ACCEPTANCE
from tools.calibrate.__main__ import main
from tools.calibrate.fit import said_by
from tools.calibrate.rows import Row, cases

ROW: Row = {
    "source_url": "https://github.com/someone/somewhere",
    "model": "GLM-5.2",
    "quant": "QuantTrio Int4-Int8Mix",
    "tp": 4,
    "decode_tok_s": 20,
}


def test_what_a_source_says_of_constants_is_held_out_with_its_rows():
    ajclark = "ajclark/GLM-5.3-DCP4-DFlash2-NVMe-KV-Offload-4x-DGX-Spark"
    assert said_by(PRIORS["compute"], ajclark)
    assert said_by(ACCEPTANCE["dflash2 prose"], ajclark)
    assert not said_by(PRIORS["eager"], ajclark)
    assert said_by(PRIORS["packed"], "joesinvestments/glm52-spark-kit")
    for none in ("", "https://forums.developer.nvidia.com/t/fitting/374832", "LibertAI, on four Sparks"):
        assert not any(said_by(one, none) for one in (*PRIORS.values(), *ACCEPTANCE.values()))


@pytest.mark.parametrize(
    ("model", "said", "method", "drafter"),
    [
        ("GLM-5.2", "n-gram", "lookup", "lookup"),
        ("GLM-5.3-Flash", "suffix decoding", "lookup", "lookup"),
        ("GLM-5.3-Flash", "DSpark", "block", "dspark"),
        ("GLM-5.3-Flash", "DFlash2 + copy drafts", "block", "dflash2-flash"),
        ("GLM-5.3-Flash", "MTP", "mtp", "mtp-flash"),
        ("GLM-5.2", "none", "", ""),
        ("GLM-5.2", None, "", ""),
    ],
)
def test_what_drafted(model, said, method, drafter):
    (case,) = cases([{**ROW, "model": model, "quant": "NVFP4", "spec_method": said, "spec_tokens": 3}])
    assert (case.run.method, case.drafter) == (method, drafter)
    assert not drafter or f"{drafter} prose" in ACCEPTANCE


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "no JSON"),
        ("[]", "an object with a source_url"),
        (json.dumps({**ROW, "concurrency": "1"}), "concurrency is '1', which is no number"),
        (json.dumps({**ROW, "tp": 0}), "tp is 0, which cannot be"),
        (json.dumps({**ROW, "decode_tok_s": float("nan")}), "decode_tok_s is nan"),
    ],
)
def test_what_is_no_row_is_named_with_its_line(line, says, tmp_path: Path, monkeypatch, capsys):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(ROW) + "\n" + line + "\n")
    monkeypatch.setattr(sys, "argv", ["calibrate", "--predict", str(file)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert f"{file}:2: " in (said := capsys.readouterr().err)
    assert says in said
