"""One page from one or many benchmark records: conditions, plots, and every figure with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from glmspark.measure.plots import Plot, label
from glmspark.measure.record import Estimate, Point, Record

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #667; --line: #d8dce3; --page: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa3b2; --line: #39414e;
  --page: #14181f; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0 auto;
  max-width: 72rem; padding: 1rem; }
h1 { font-size: 1.5rem; margin: .5rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
figure { margin: 0; background: #fff; border: 1px solid var(--line); border-radius: 6px; padding: .25rem; }
figure svg { width: 100%; height: auto; display: block; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
td, th { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
td:first-child, th:first-child { text-align: left; } th { color: var(--soft); font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.soft { color: var(--soft); font-size: .9rem; }
"""


_LEGEND = (
    "Medians; the bars and ± say where a repetition would fall in 95 of 100 cases. "
    "A ? marks what is less sure than was asked."
)


def page(records: Sequence[Record], drawn: Sequence[Plot]) -> str:
    """The whole page, which needs nothing beside it. Whatever a record holds is text in it, never markup."""
    names = sorted({record.conditions.model for record in records})
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(', '.join(names))}: how fast</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(', '.join(names))}</h1>",
        f'<p class="soft">{_LEGEND}</p>',
        '<div class="plots">',
        *(f"<figure>{plot.svg}</figure>" for plot in drawn),
        "</div>",
    ]
    for record in records:
        parts += _one(record)
    parts.append("</body></html>")
    return "\n".join(parts) + "\n"


def _one(record: Record) -> list[str]:
    conditions = record.conditions
    facts = {
        "endpoint": conditions.url,
        "deployment": conditions.deployment,
        "lock file": conditions.lock_digest,
        "engine": conditions.engine,
        "context": f"{conditions.context:,} tokens" if conditions.context else None,
        "thinking": "on" if conditions.thinking else "off",
        "temperature": f"{conditions.temperature:g}",
        "answers": f"{conditions.answer_tokens} tokens"
        + (" each" if conditions.fixed_length else " at most"),
        "measured": f"{record.began}, {record.seconds:.0f} s, glmspark {record.glmspark}",
        "cost of measuring": f"{100 * record.own_cpu_s / record.seconds:.1f} % of one core"
        if record.seconds
        else None,
        "ended": record.ended if record.ended != "whole" else None,
    }
    rows = [f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items() if value]
    heads = (
        "",
        "prompt",
        "tok/s each",
        "tok/s all",
        "TTFT s",
        "prefill tok/s",
        "gap p99 ms",
        "accepted",
        "cached",
    )
    return [
        f"<h2>{escape(label(record))}</h2>",
        f"<dl>{''.join(rows)}</dl>",
        f'<div class="wide"><table><tr>{"".join(f"<th>{head}</th>" for head in heads)}</tr>',
        *(_row(point) for point in record.points),
        "</table></div>",
        *(
            f'<p class="soft">{escape(name_of(point))}: {escape(text)}</p>'
            for point in record.points
            for text in (point.note, _failed(point))
            if text
        ),
    ]


def _failed(point: Point) -> str | None:
    if not point.failures:
        return None
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(point.failures.items()))
    return f"requests that failed: {counts}: {point.first_failure or ''}"


def _row(point: Point) -> str:
    sure = "" if point.enough or point.workload == "mixed" else " ?"
    drafts = point.drafts.length if point.drafts else None
    cells = (
        name_of(point) + sure,
        f"{point.prompt_tokens:,}",
        figure(point.decode),
        figure(point.throughput) if point.streams > 1 else "",
        figure(point.ttft, 3),
        figure(point.prefill, 0) if point.workload == "depth" else "",
        f"{1000 * point.gap_p99:.1f}" if point.gap_p99 is not None else "",
        f"{drafts:.2f}" if drafts is not None else "",
        f"{100 * point.cache_hits:.0f} %" if point.cache_hits is not None else "",
    )
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def name_of(point: Point) -> str:
    """What a point is called."""
    if point.workload == "kind":
        return point.kind
    if point.workload == "depth":
        return f"{point.wanted_depth:,} tokens deep"
    return f"{point.streams} streams" if point.workload == "concurrency" else "mixed load"


def figure(estimate: Estimate | None, digits: int = 1) -> str:
    """An estimate for people: the median and half of its interval."""
    if estimate is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.median:.{digits}f} ± ?"
    return f"{estimate.median:.{digits}f} ± {(estimate.high - estimate.low) / 2:.{digits}f}"
