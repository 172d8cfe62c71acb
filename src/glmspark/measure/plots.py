"""Plots of benchmark records: speed by kind of text, by depth, by streams, and what drafts are worth."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from glmspark.errors import GlmsparkError
from glmspark.measure.record import Estimate, Point, Record

_COLOURS = ("#2f6db5", "#c8553d", "#3f9657", "#8c56a8", "#b8862b", "#3aa0b4")
_SIZE = (5.4, 3.4)
"""Inches: at a phone's width the letters are still read."""


@dataclass(frozen=True)
class Plot:
    """One picture. name: fit for a file's name."""

    name: str
    title: str
    svg: str
    png: bytes


def label(record: Record) -> str:
    """What a record is called in a legend."""
    where = record.conditions.deployment or record.conditions.url
    return f"{record.conditions.model}, {where}, {record.began[:16].replace('T', ' ')}"


def plots(records: Sequence[Record]) -> Iterator[Plot]:
    """Every plot that the records have points for. Raises GlmsparkError where matplotlib is not installed."""
    for name, (title, draw) in DRAWERS.items():
        figure = _figure()
        axis = figure.subplots()
        if draw(axis, records):
            axis.set_title(title)
            axis.grid(visible=True, alpha=0.25)
            axis.set_ylim(bottom=0)
            if len(axis.get_legend_handles_labels()[1]) > 1:
                axis.legend(fontsize=7, frameon=False)
            yield Plot(name, title, _svg(figure), _png(figure))


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise GlmsparkError(
            "plots need matplotlib, which is not installed",
            step="draw the report",
            next="pip install 'glmspark[report]', or matplotlib alone",
        ) from None
    return Figure(figsize=_SIZE, dpi=120, layout="constrained")


def _svg(figure: Any) -> str:
    """The figure as an element that stands in a page; letters stay letters."""
    from matplotlib import rc_context

    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "glmspark"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": "glmspark"})
    text = file.getvalue()
    return text[text.index("<svg") :]


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": "glmspark"})
    return file.getvalue()


def _points(record: Record, workload: str) -> list[Point]:
    return [point for point in record.points if point.workload == workload and point.rounds]


def _errors(estimates: Sequence[Estimate]) -> list[list[float]]:
    """Error bars; none where the interval is not known, and upwards none longer than the figure itself.

    One bad point would squeeze all others; the table beside has its whole interval.
    """
    below = [one.median - one.low if one.low is not None else 0.0 for one in estimates]
    above = [min(one.high - one.median, one.median) if one.high is not None else 0.0 for one in estimates]
    return [below, above]


def _line(
    axis: Any, record: Record, number: int, pairs: Sequence[tuple[float, Estimate]], style: str
) -> None:
    if pairs:
        estimates = [estimate for _, estimate in pairs]
        axis.errorbar(
            [place for place, _ in pairs],
            [estimate.median for estimate in estimates],
            yerr=_errors(estimates),
            fmt=style,
            color=_COLOURS[number % len(_COLOURS)],
            capsize=3,
            label=label(record),
        )


def _kinds(axis: Any, records: Sequence[Record]) -> bool:
    names: list[str] = []
    for record in records:
        names += [one.kind for one in _points(record, "kind") if one.kind not in names]
    width = 0.8 / max(1, len(records))
    for number, record in enumerate(records):
        found = [(names.index(one.kind), one.decode) for one in _points(record, "kind") if one.decode]
        estimates = [estimate for _, estimate in found]
        axis.bar(
            [place + (number - (len(records) - 1) / 2) * width for place, _ in found],
            [estimate.median for estimate in estimates],
            width * 0.9,
            yerr=_errors(estimates) if found else None,
            capsize=3,
            color=_COLOURS[number % len(_COLOURS)],
            label=label(record),
        )
    axis.set_xticks(range(len(names)), names)
    axis.set_ylabel("tokens/s")
    return bool(names)


def _depth(axis: Any, records: Sequence[Record]) -> bool:
    return _by_depth(axis, records, "tokens/s", lambda point: point.decode)


def _first(axis: Any, records: Sequence[Record]) -> bool:
    return _by_depth(axis, records, "seconds", lambda point: point.ttft)


def _by_depth(
    axis: Any, records: Sequence[Record], unit: str, of: Callable[[Point], Estimate | None]
) -> bool:
    drawn = False
    for number, record in enumerate(records):
        found = [(float(one.prompt_tokens), value) for one in _points(record, "depth") if (value := of(one))]
        _line(axis, record, number, found, "o-")
        drawn = drawn or bool(found)
    axis.set_xlabel("prompt tokens")
    axis.set_ylabel(unit)
    if drawn:
        axis.set_xscale("log", base=2)
    return drawn


def _streams(axis: Any, records: Sequence[Record]) -> bool:
    drawn = False
    for number, record in enumerate(records):
        points = _points(record, "concurrency")
        _line(axis, record, number, [(float(p.streams), p.throughput) for p in points if p.throughput], "o-")
        drawn = drawn or bool(points)
    axis.set_xlabel("streams at once")
    axis.set_ylabel("tokens/s of all together")
    return drawn


def _drafts(axis: Any, records: Sequence[Record]) -> bool:
    number = 0
    for record in records:
        for point in _points(record, "kind"):
            if point.drafts and point.drafts.per_position:
                shares = point.drafts.per_position
                colour = _COLOURS[number % len(_COLOURS)]
                axis.plot(range(1, len(shares) + 1), shares, "o-", color=colour, label=point.kind)
                number += 1
    axis.set_xlabel("position in the draft")
    axis.set_ylabel("share accepted")
    return number > 0


DRAWERS: dict[str, tuple[str, Callable[[Any, Sequence[Record]], bool]]] = {
    "kinds": ("One stream by kind of text", _kinds),
    "depth": ("One stream by depth", _depth),
    "first": ("Time to the first token", _first),
    "streams": ("Many streams", _streams),
    "drafts": ("Drafts accepted by position", _drafts),
}
"""By name: a title, and what draws on an axis and says whether there was anything to draw."""
