"""A plan for people: tables, a bar for each rank, what a step's time goes into."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text as Line

from glmspark.config.units import format_size

if TYPE_CHECKING:
    from glmspark.config.recipe import Recipe
    from glmspark.plan.changes import Change
    from glmspark.plan.plan import Memory
    from glmspark.plan.search import Option
    from glmspark.plan.site import Seat, Site
    from glmspark.plan.speed import Range
    from glmspark.plan.study import Held, Study

_BAR = 60
_WIDTH = 80
COLOURS = {
    "weights": "blue",
    "drafter": "cyan",
    "KV cache": "green",
    "work space": "yellow",
    "graphs, NCCL": "magenta",
    "host": "red",
    "system": "white",
    "free": "bright_black",
}
_PLAIN = {
    "weights": "█",
    "drafter": "@",
    "KV cache": "▓",
    "work space": "#",
    "graphs, NCCL": "+",
    "host": "=",
    "system": "-",
    "free": "░",
}
"""Where there are no colours."""


def show(
    found: Study,
    single: Study,
    streams: int,
    flags: Sequence[str],
    changes: Sequence[Change],
    more: Change | None,
    notes: Sequence[str],
    text: str,
) -> None:
    """All of a plan. single: the same for one request, where several were asked for."""
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    recipe = found.recipe
    headers = "by its headers" if found.outline.exact else "by its name"
    kind = "CPU" if found.site.platform == "cpu" else _link(found.site)
    console.print(
        f"[bold]{escape(recipe.name)}[/bold]  {recipe.layout.words()} on {len(found.ranks)} "
        f"node{'s' * (len(found.ranks) != 1)}, {kind}; {escape(found.outline.name)} {headers}"
    )
    _memory(console, found)
    _stored(console, found)
    _cache(console, found)
    if found.speeds:
        _speed(console, found, single, streams)
        _parts(console, found, text)
    _changes(console, changes, more, text)
    console.print("\n[bold]flags[/bold]")
    print("  " + shlex.join(flags))
    for note in notes:
        console.print(Line(f"note: {note}", style="dim"))


def _link(site: Site) -> str:
    names = {"tcp": "sockets", "roce": "RoCE", "one-shot": "one-shot RDMA", "none": "no network"}
    return f"{names[site.link.kind]} at {site.link.gbit:g} Gbit/s"


def classes_of(memory: Memory) -> list[tuple[str, int]]:
    """Memory of a rank in the rows of the table: weights by class, then the rest."""
    weights = [(name.replace("_", " "), size) for name, size in memory.by_class.items() if size]
    weights.sort(key=lambda item: -item[1])
    rest = [
        ("drafter", memory.drafter),
        ("KV cache", memory.kv_cache),
        ("work space", memory.scratch),
        ("CUDA graphs", memory.graphs),
        ("NCCL", memory.network),
        ("host share", memory.process),
    ]
    return weights + [(name, size) for name, size in rest if size]


def parts_of(rank: Held, seat: Seat) -> list[tuple[str, int]]:
    """The bar of a rank: coarse classes, what the system and others on its node have, and what stays free."""
    memory = rank.memory
    parts = [
        ("weights", memory.weights),
        ("drafter", memory.drafter),
        ("KV cache", memory.kv_cache),
        ("work space", memory.scratch),
        ("graphs, NCCL", memory.graphs + memory.network),
        ("host", memory.process),
        ("system", seat.total - seat.available),
    ]
    free = max(seat.available - memory.total, 0)
    return [*((name, size) for name, size in parts if size), ("free", free)]


def _memory(console: Console, found: Study) -> None:
    from glmspark.plan.study import alike

    groups = alike(found.ranks)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("memory of a rank")
    for group in groups:
        layers = f"layers {group[0].place.layers[0]}-{group[-1].place.layers[1] - 1}"
        table.add_column(f"{_names(group)}\n{layers}", justify="right")
    rows: dict[str, list[str]] = {}
    for number, group in enumerate(groups):
        for name, size in classes_of(group[0].memory):
            rows.setdefault(name, ["-"] * len(groups))[number] = format_size(size)
    for name, cells in rows.items():
        table.add_row(name, *cells)
    seats = {seat.name: seat for seat in found.site.seats}
    for name, pick in _SUMS.items():
        sums = [_signed(pick(group[0], seats[group[0].node])) for group in groups]
        table.add_row(Line(name, style="bold"), *sums)
    console.print(table)
    if found.site.platform == "cuda":
        console.print()
        glyphs = _PLAIN if console.color_system is None else dict.fromkeys(_PLAIN, "█")
        parts = [parts_of(group[0], seats[group[0].node]) for group in groups]
        for group, part in zip(groups, parts, strict=True):
            bar = stack(part, seats[group[0].node].total, glyphs)
            console.print(Line(f"{_names(group):12}", end="").append_text(bar))
        _legend(console, [name for name in COLOURS if any(name in dict(part) for part in parts)], glyphs)


def _legend(console: Console, names: Sequence[str], glyphs: Mapping[str, str]) -> None:
    line = Line(" " * 12)
    for name in names:
        if len(line) + len(name) + 2 > _WIDTH:
            console.print(line)
            line = Line(" " * 12)
        line.append(glyphs[name], style=COLOURS[name]).append(f" {name}  ")
    console.print(line)


def _stored(console: Console, found: Study) -> None:
    """What nodes need on their disks, where that is less than the checkpoint."""
    from glmspark.plan.stored import divides, stored_bytes

    if not divides(found.recipe):
        return
    sizes = [stored_bytes(found.recipe, found.outline, rank.place) for rank in found.ranks]
    each = ", ".join(format_size(size) for size in dict.fromkeys(sizes))
    whole = found.outline.nbytes
    saved = format_size(sum(whole - size for size in sizes))
    console.print(
        f"\n[bold]on disk[/bold]  {each} a node instead of {format_size(whole)} by "
        f"`glmspark fetch --only-needed`: {saved} saved"
    )


_SUMS: dict[str, Callable[[Held, Seat], int]] = {
    "needed": lambda rank, _: rank.memory.needed,
    "while loading": lambda rank, _: rank.memory.load,
    "available": lambda _, seat: seat.available,
    "kept free of it": lambda rank, _: rank.memory.reserve,
    "left on the node": lambda rank, _: rank.left,
}


def _names(group: Sequence[Held]) -> str:
    first, last = group[0].place.rank, group[-1].place.rank
    return f"rank {first}" if first == last else f"ranks {first}-{last}"


def _signed(size: int) -> Line:
    return Line(format_size(size), style="bold red" if size < 0 else "bold")


def stack(parts: Sequence[tuple[str, int]], total: int, glyphs: Mapping[str, str]) -> Line:
    """A bar of _BAR cells for the sizes of `parts`; every part that is there gets at least one."""
    bar = Line()
    whole = max(total, sum(size for name, size in parts if name != "free"))
    end = 0
    for name, size in parts:
        end += size
        cells = max(round(end / whole * _BAR) - len(bar), 1 if name != "free" and size else 0)
        bar.append(glyphs[name] * cells, style=COLOURS[name])
    return bar


def _cache(console: Console, found: Study) -> None:
    token, recipe = found.token, found.recipe
    kinds = [
        ("MLA latents", token.latent),
        ("indexer keys", token.indexer),
        ("MTP layer", token.drafter),
    ]
    split = ", ".join(f"{name} {size:,.0f}" for name, size in kinds if size)
    dtype = recipe.engine.args.get("kv_cache_dtype", "auto")
    shared = f", shared by {recipe.layout.dcp} ranks" if recipe.layout.dcp > 1 else ""
    full = found.tokens / recipe.engine.max_model_len
    console.print(
        f"\nKV cache ({dtype}): {found.tokens:,} tokens, {full:.1f} requests of full length; "
        f"{token.total:,.0f} bytes each on a rank ({split}){shared}"
    )
    if found.states:
        console.print(f"  and {format_size(found.states)} of states for each request")
    if found.context:
        console.print(f"largest context that fits: {found.context:,} tokens")


def _speed(console: Console, found: Study, single: Study, streams: int) -> None:
    first = next(iter(found.speeds.values()))
    console.print(
        f"\n[bold]speed[/bold] after {first.depth:,} tokens, in tok/s (nine of ten measurements should be in "
        "the range)"
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("text", "tokens a step", "one request", *(("all " + str(streams),) if streams > 1 else ())):
        table.add_column(title, justify="left" if title == "text" else "right")
    table.add_column("of the limit", justify="right")
    for kind, one in found.speeds.items():
        cells = [kind, f"{one.tokens:.2f}", _range(single.speeds[kind].decode)]
        if streams > 1:
            cells.append(_range(one.decode))
        table.add_row(*cells, f"{100 * one.share:.0f} % of {one.limit:.0f}")
    console.print(table)
    console.print(
        f"prefill {_range(first.prefill)} tok/s; first token of {first.prompt:,} after {_range(first.ttft)} s"
    )


def _range(one: Range) -> str:
    return f"{_short(one.value)} ({_short(one.low)}-{_short(one.high)})"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _parts(console: Console, found: Study, text: str) -> None:
    one = found.speeds.get(text) or next(iter(found.speeds.values()))
    console.print(f"\na step of {1000 * one.step:.0f} ms goes into")
    _bars(console, one.parts, one.step)
    for item in one.collectives:
        micro, latency = 1e6 * item.seconds, 1e6 * item.latency
        console.print(
            f"  {item.count} x {item.what} of {format_size(round(item.size))}: {micro:.0f} us each, "
            f"{latency:.0f} of it latency"
        )


def _bars(console: Console, parts: Mapping[str, float], whole: float) -> None:
    for name, seconds in sorted(parts.items(), key=lambda item: -item[1]):
        if seconds > 0:
            bar = "█" * max(round(seconds / whole * 40), 1)
            console.print(
                f"  {name:12} {1000 * seconds:6.1f} ms {100 * seconds / whole:4.0f} %  [blue]{bar}[/blue]"
            )


def _changes(console: Console, changes: Sequence[Change], more: Change | None, text: str) -> None:
    if not changes and more is None:
        return
    console.print(f"\n[bold]what to change[/bold], at {text} text")
    for one in changes:
        console.print(
            f"  {escape(one.what)}: {_short(one.before)} → {_short(one.after)} tok/s  ({escape(one.how)})"
        )
    if not changes:
        console.print("  nothing cheap gains more than 3 %")
    if more is not None:
        console.print(f"  {more.what}: {_short(more.before)} → {_short(more.after)} tok/s")


def show_search(options: Sequence[Option], recipe: Recipe, site: Site, aim: str, text: str) -> None:
    """The layouts that fit, best first; at least one."""
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    nodes, fit = len(site.seats), "layouts fit" if len(options) > 1 else "layout fits"
    link = "CPU" if site.platform == "cpu" else _link(site)
    console.print(
        f"[bold]{escape(recipe.name)}[/bold] on up to {nodes} node{'s' * (nodes != 1)}, {link}: "
        f"{len(options)} {fit}, best for {aim} first; speeds in tok/s at {text} text"
    )
    many = f"{options[0].streams} requests"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("layout", "nodes", "draft", "largest context", "one request", many, "left on a node"):
        table.add_column(title, justify="left" if title in ("layout", "draft") else "right")
    for one in options[:20]:
        layout, draft = one.study.recipe.layout, one.study.recipe.draft
        table.add_row(
            layout.model_copy(update={"backend": "mp"}).words() + " *" * (one.refused is not None),
            str(layout.world),
            "-" if draft is None else f"{draft.method}:{draft.tokens}",
            f"{one.study.context:,}",
            _short(one.stream) if one.stream else "-",
            _short(one.many) if one.many else "-",
            format_size(one.study.shortest.left),
        )
    console.print(table)
    if len(options) > 20:
        print(f"and {len(options) - 20} more; --json has all")
    # DCP 2 and DCP 4 are refused for one reason.
    whys = [one.refused.message for one in options[:20] if one.refused is not None]
    for why in {re.sub(r"\d+", "", message): message for message in whys}.values():
        print(f"* `up` refuses it: {why}")
