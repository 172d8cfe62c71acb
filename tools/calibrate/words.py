"""What the words of a row mean: what drafts, what was generated, how many tokens a step makes."""

from __future__ import annotations

import re
from typing import Any

from glmspark.plan.speed.text import Text

__all__ = ["Row", "drafter_of", "kind_of", "text_of", "tokens_of"]

Row = dict[str, Any]


def kind_of(row: Row) -> str:
    """What drafts: dspark, dflash2, lookup, mtp; empty where nothing does."""
    said = str(row.get("spec_method") or "").lower()
    if said in ("", "none", "off", "no"):
        return ""
    for kind, pattern in (("dspark", "dspark"), ("dflash2", "dflash"), ("lookup", r"n-?gram|suffix|lookup")):
        if re.search(pattern, said):
            return kind
    return "mtp"


def drafter_of(row: Row) -> str:
    """Whose acceptance counts, see `glmspark.plan.speed.text.ACCEPTANCE`."""
    kind = kind_of(row)
    flash = row.get("model") == "GLM-5.3-Flash" and kind in ("mtp", "dflash2")
    return f"{kind}-flash" if flash else kind


_SURE = ("structured", "count", "repetitive", "peak", "predictable", "degenerate", "high-acceptance")
_TEXTS: dict[Text, tuple[str, ...]] = {
    "structured": _SURE,
    "prose": ("prose", "natural", "adversarial"),
    "code": ("code", "coding", "codegen"),
    "mixed": ("agentic", "corpus", "category", "random"),
}
_LONGEST_FIRST = sorted((word for words in _TEXTS.values() for word in words), key=len, reverse=True)
_WORDS = re.compile(r"\b(" + "|".join(_LONGEST_FIRST) + r")\b")
_FIGURE = re.compile(r"\b(?:prose|code|coding)(?: median| mean)? (\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?\b")
"""A kind of text with its own figure beside it: another measurement, unless the figure is the row's."""


def _means(found: re.Match[str], row: Row) -> bool:
    low = float(found[1])
    high = float(found[2] or low)
    return low * 0.99 <= float(row.get("decode_tok_s") or 0) <= high * 1.01


def text_of(row: Row) -> Text:
    """What was generated, by the row's notes: structured, code, prose; mixed where they do not say."""
    notes = str(row.get("notes") or "").lower()
    said = _FIGURE.sub(lambda found: found[0] if _means(found, row) else " ", notes)
    for word in _WORDS.findall(said):
        for text, words in _TEXTS.items():
            if word in words:
                return text
    return "mixed"


def tokens_of(row: Row, drafts: int) -> float | None:
    """Tokens a step by the row's acceptance, in whatever words it is given; None where it is not."""
    said = str(row.get("acceptance") or "").replace("~", "")
    if not said:
        return None
    if found := re.match(r"([\d.]+) \([\d.]+ ?%\)$", said):
        return float(found[1])
    if found := re.search(r"([\d.]+)(?:-([\d.]+))? draft tok/step", said):
        return 1 + _middle(found)
    if found := re.search(r"([\d.]+) accepted/batch", said):
        return 1 + float(found[1])
    if found := re.search(r"(\d+)/(\d+)(?: draft tokens)? accepted", said):
        return 1 + drafts * int(found[1]) / int(found[2])
    if found := re.search(r"([\d.]+) accepted of (\d+)", said):
        return 1 + float(found[1])
    if found := re.search(r"(?:mean length|accept len) ([\d.]+)(?:-([\d.]+))?", said):
        return _middle(found)
    if found := re.search(r"([\d.]+) (?:tok/|of \d)", said):
        return float(found[1])
    if found := re.search(r"([\d.]+)(?:-([\d.]+))? ?%", said):
        return 1 + drafts * _middle(found) / 100
    if found := re.fullmatch(r"([\d.]+)(?: \(.*\))?", said):
        value = float(found[1])
        return 1 + drafts * value if value <= 1 else value
    return None


def _middle(found: re.Match[str]) -> float:
    low = float(found[1])
    return (low + float(found[2])) / 2 if found.lastindex and found.lastindex > 1 and found[2] else low
