"""From a row of a measurements file to a run that the speed model can predict."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glmspark.models.outline import Outline, outline_published
from glmspark.models.published import find, find_drafter
from glmspark.models.published.checkpoints import NVFP4_ATTENTION, Published
from glmspark.models.published.configs import FLASH, GLM_5_2
from glmspark.models.published.formats import Formats
from glmspark.plan.cache import CacheFormat, cache_format
from glmspark.plan.errors import PlanError
from glmspark.plan.speed.links import Link
from glmspark.plan.speed.run import Run
from glmspark.plan.speed.text import Text
from tools.calibrate.deepseek import deepseek
from tools.calibrate.words import Row, drafter_of, kind_of, text_of, tokens_of

__all__ = ["Case", "PrefillCase", "Row", "aside", "cases", "prefill_cases", "read_rows", "run_of"]

SHORT = 1000
"""Tokens before the new ones where a row says nothing of its prompt."""


@dataclass(frozen=True)
class Case:
    """One row as the model sees it. tokens: that a step makes, where the row says so. text: else what kind it
    is: prose, code, structured or mixed. drafter: which acceptance applies to it."""

    number: int
    row: Row
    run: Run
    streams: int
    depth: float
    observed: float
    tokens: float | None
    text: Text
    drafter: str

    @property
    def source(self) -> str:
        """Whose measurement: the repository or page, whatever file of it."""
        return source_of(str(self.row["source_url"]))


@dataclass(frozen=True)
class PrefillCase:
    """A row's prefill speed. chunk: max_num_batched_tokens, as the notes say, else as is usual."""

    number: int
    row: Row
    run: Run
    prompt: float
    chunk: int
    observed: float

    @property
    def source(self) -> str:
        """Whose measurement."""
        return source_of(str(self.row["source_url"]))


def source_of(url: str) -> str:
    """A repository's owner and name, else the address itself."""
    found = re.search(r"https://github\.com/([^/ ]+/[^/ )]+)", url)
    return found[1] if found else url


_NUMBERS = (
    *("tp", "pp", "dcp", "concurrency", "spec_tokens", "prompt_len"),
    *("decode_tok_s", "prefill_tok_s"),
)
_COUNTS = ("tp", "pp", "dcp", "concurrency")


def read_rows(path: Path) -> list[Row]:
    """The rows of a JSON lines file. Raises ValueError, naming the line, for what is no row of
    measurements."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: this is no JSON: {error}") from None
        if not isinstance(row, dict) or not isinstance(row.get("source_url"), str):
            raise ValueError(f"{path}:{number}: a row is an object with a source_url")
        for name in _NUMBERS:
            value = row.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ValueError(f"{path}:{number}: {name} is {value!r}, which is no number")
            least = 1 if name in _COUNTS else 0
            if value is not None and not least <= value < math.inf:
                raise ValueError(f"{path}:{number}: {name} is {value!r}, which cannot be")
        rows.append(row)
    return rows


_ASIDE = (
    (r"stuck at|quarter clock|at \d+ ?% clock|721 MHz", "a GPU's clock was stuck"),
    (r"secondary source|secondhand", "second-hand"),
    (r"e2e aggregate|end-to-end agg|e2e incl\. latency", "includes the time of the prompt"),
    (r"count-to-\d+ aggregate", "one text for all requests"),
)


def aside(row: Row) -> str | None:
    """Why a row says nothing about decoding speed by itself: a rule over its own notes. None where it
    does."""
    notes = str(row.get("notes") or "")
    for pattern, why in _ASIDE:
        if re.search(pattern, notes):
            return why
    if not row.get("spec_method") and re.search(r"prose [\d.]+ ?/ ?code [\d.]+", notes):
        return "no drafter is named, and the speed depends on the text: something drafted"
    return None


def cases(rows: list[Row]) -> Iterator[Case]:
    """Every row with a decoding speed and a known layout."""
    for number, row in enumerate(rows):
        speed, tp = row.get("decode_tok_s"), row.get("tp")
        if not isinstance(speed, int | float) or speed <= 0 or not isinstance(tp, int):
            continue
        run = run_of(row)
        if run is None:
            continue
        text = text_of(row)
        yield Case(
            number=number,
            row=row,
            run=run,
            streams=int(row.get("concurrency") or 1),
            depth=float(row.get("prompt_len") or SHORT),
            observed=float(speed),
            tokens=1.0 if not run.drafts else tokens_of(row, run.drafts),
            text=text,
            drafter=drafter_of(row),
        )


_CHUNK = re.compile(r"(?:mnbt|max_num_batched_tokens) (\d+)|(\d+)-token chunk")
USUAL_PROMPT = 8192.0


def prefill_cases(rows: list[Row]) -> Iterator[PrefillCase]:
    """Every row with a prefill speed and a known layout, but those that their notes call inconsistent."""
    for number, row in enumerate(rows):
        speed, notes = row.get("prefill_tok_s"), str(row.get("notes") or "")
        if not isinstance(speed, int | float) or not isinstance(row.get("tp"), int):
            continue
        if re.search(r"inconsistent|possibly-cold", notes) or (run := run_of(row)) is None:
            continue
        said = _CHUNK.search(notes)
        usual = 8192 if run.outline.architecture.linear is not None else 2048
        chunk = int(next(group for group in said.groups() if group)) if said else usual
        prompt = float(row.get("prompt_len") or USUAL_PROMPT)
        yield PrefillCase(number, row, run, prompt, chunk, float(speed))


def run_of(row: Row) -> Run | None:
    """The run of a row, None for a model that is not known."""
    outline = outline_of_row(row)
    if outline is None:
        return None
    method, drafts, drafter, layers = _speculation(row)
    model = outline.architecture
    dtype = {"fp4": "nvfp4_ds_mla", "bf16 (auto)": "auto"}.get(str(row.get("kv_dtype")), row.get("kv_dtype"))
    sparse = model.index_topk is not None and "REAP" not in str(row.get("quant"))
    eager = row.get("cuda_graphs") is False
    return Run(
        outline=outline,
        link=link_of(row),
        tp=int(row["tp"]),
        pp=int(row.get("pp") or 1),
        dcp=int(row.get("dcp") or 1) if model.linear is None else 1,
        expert_parallel=bool(row.get("ep")),
        graphs=not eager,
        sparse=sparse,
        cache=_cache(model, str(dtype or "fp8"), sparse),
        method=method,
        drafts=drafts,
        drafter=drafter,
        drafter_layers=layers,
        a2a="a2a" in str(row.get("notes")),
    )


def _cache(model: Any, dtype: str, sparse: bool) -> CacheFormat:
    if model.model_type.startswith("deepseek"):
        return CacheFormat(dtype, 584, 132)
    try:
        return cache_format(model, dtype, element=2, sparse=sparse)
    except PlanError:  # a format that only its author has
        return cache_format(model, "fp8", element=2, sparse=sparse)


_NAMED = (
    ("GLM-5.2", r"REAP.*(504|168)", "madeby561/GLM-5.2-NVFP4-REAP-504B"),
    ("GLM-5.2", r"REAP", "0xSero/GLM-5.2-NVFP4-REAP-469B"),
    ("GLM-5.2", r"Int4-Int8Mix", "QuantTrio/GLM-5.2-Int4-Int8Mix"),
    ("GLM-5.2", r"AWQ.*15", "CosmicRaisins/GLM-5.2-AWQ-INT4-15pct"),
    ("GLM-5.2", r"EXL3 3\.5", "brandonmusic/GLM-5.2-EXL3-TR3v4-3.5bpw-MTP78"),
    ("GLM-5.2", r"NF3", "madeby561/GLM-5.2-MXFP8-NVFP4-NF3-Hybrid"),
    ("GLM-5.3", r"Int4-Int8Mix", "Tech2wild/GLM-5.3-Int4-Int8Mix"),
    ("GLM-5.3", r"EXL3 2\.75", "drowzeys/keys-GLM-5.3-EXL3-2.75BPW"),
    ("GLM-5.3-Flash", r"FP8", "zai-org/GLM-5.3-Flash"),
    ("GLM-5.3-Flash", r"EXL3 4", "Mia-AiLab/GLM-5.3-Flash-EXL3-4bpw-TensorFold"),
    ("GLM-5.3-Flash", r"nvidia", "nvidia/GLM-5.3-Flash-NVFP4"),
)
"""Checkpoints that a row means by what it says of the format."""

_FORMATS = (
    (r"NVFP4 attention", NVFP4_ATTENTION),
    (r"NVFP4", Formats("nvfp4 g16", mtp_routed="nvfp4 g16")),
    (r"MXFP4|FP4", Formats("mxfp4 g32", "mxfp8 g32", "mxfp4 g32", "mxfp8 g32")),
    (r"FP8|INT8|W8", Formats("fp8 128x128", "fp8 128x128", "fp8 128x128", "fp8 128x128")),
    (r"INT4|AWQ|GPTQ|W4", Formats("awq int4 g128")),
    (r"BF16|bfloat16", Formats("bf16")),
)
"""Else the format itself, the rest in bf16 as is usual."""

_CONFIGS = {"GLM-5.2": GLM_5_2, "GLM-5.3": GLM_5_2, "GLM-5.3-Flash": FLASH}


_KNOWN: dict[str, Outline] = {}


def outline_of_row(row: Row) -> Outline | None:
    """What the row's checkpoint weighs."""
    name, quant = str(row.get("model")), str(row.get("quant") or "")
    key = f"{name} {quant}"
    tuned = re.search(r"TensorFold|EXL3 kernels", str(row.get("engine"))) is not None
    key += " tuned" * tuned
    if key not in _KNOWN:
        found = _outline(name, quant)
        if found is not None and tuned:
            found = _tuned(found)
        if found is None:
            return None
        _KNOWN[key] = found
    return _KNOWN[key]


def _tuned(found: Outline) -> Outline:
    """The same by kernels made for EXL3 on a GB10, which vLLM does not have."""
    weights = tuple(replace(one, format=one.format.replace("exl3", "exl3-tuned")) for one in found.weights)
    return replace(found, weights=weights)


def _outline(name: str, quant: str) -> Outline | None:
    if name.startswith("DeepSeek-V4"):
        return deepseek(name)
    config = _CONFIGS.get(name)
    if config is None:
        return None
    for model, pattern, source in _NAMED:
        if model == name and re.search(pattern, quant):
            known = find(source)
            assert known is not None
            return outline_published(source, known)
    if found := re.search(r"EXL3\D{0,12}(\d(?:\.\d+)?)", quant):
        form = f"exl3 {found[1]}"
        return outline_published(quant, Published(config, Formats(form, form, form, form)))
    formats = next((one for pattern, one in _FORMATS if re.search(pattern, quant, re.IGNORECASE)), None)
    if formats is None and not quant:  # as most are served
        formats = _FORMATS[1][1] if name == "GLM-5.3-Flash" else None
    return None if formats is None else outline_published(quant or name, Published(config, formats))


def link_of(row: Row) -> Link:
    """The link: what the row says of it, RoCE by NCCL where it says nothing."""
    said = f"{row.get('link') or ''} {row.get('topology') or ''}".lower()
    notes = str(row.get("notes") or "").lower()
    gbit = re.search(r"(\d+) ?g(?:be|bit|b\b| )", said)
    rate = float(gbit[1]) if gbit else 200.0
    if re.search(r"socket|tcp|ethernet", said) and "roce" not in said.replace("roce ports", ""):
        return Link("tcp", rate)
    own = r"one-shot|rocenante|sircl|rdma ring tp all-reduce"
    kind = "one-shot" if re.search(own, f"{said} {notes}") else "roce"
    return Link(kind, rate, ring="ring" in said)


def _speculation(row: Row) -> tuple[str, int, int, int]:
    """(method, drafts, bytes of the drafter, its layers)."""
    said = str(row.get("spec_method") or "").lower()
    if not kind_of(row):
        return "", 0, 0, 0
    kind = kind_of(row)
    block = kind in ("dflash2", "dspark")
    drafts = int(row.get("spec_tokens") or (7 if "dflash" in said else 5 if block else 3))
    if re.search(r"adaptive|auto|conf", said) or str(row.get("engine")).startswith("TensorFold"):
        drafts = _adapted(row, drafts, block)
    if not block:
        return kind, drafts, 0, 0
    flash = row.get("model") == "GLM-5.3-Flash"
    if kind == "dspark":
        name = "RedHatAI/GLM-5.3-speculator.dspark" if row.get("model") == "GLM-5.3" else ""
        name = name or "RedHatAI/GLM-5.2-speculator.dspark"
    else:
        name = "incoai/GLM-5.3-Flash-DFlash2" if flash else "incoai/GLM-5.3-DFlash2"
    known = find_drafter(name)
    assert known is not None
    return "block", drafts, known.nbytes, known.layers


def _adapted(row: Row, drafts: int, block: bool) -> int:
    """Drafts of an engine that stops where it expects refusal: a token more than are accepted, where that is
    said; else the lower end of its ladder for prose."""
    tokens = tokens_of(row, drafts)
    if tokens is not None:
        return max(1, min(drafts, round(tokens)))
    if text_of(row) != "prose":
        return drafts
    return 3 if block else min(drafts, 3)
