"""How `glmspark watch` looks: a table that fits the terminal, and lines where there is none. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from glmspark.config.units import format_size

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from glmspark.launch.monitor_view import EngineView, Gpu, Memory, NodeView, View

__all__ = ["line", "render"]

_WIDE = 140
"""Columns from which one table holds all."""
_OLD = 6.0  # seconds after which it is told how old a reading is
_BAR = 24
_COLOURS = {"ready": "green", "starting": "cyan", "restarting": "cyan", "stopping": "cyan", "stopped": "dim"}
_CLASSES = (("weights", "blue"), ("kv", "magenta"), ("other", "yellow"), ("cache", "cyan"))


def render(view: View, width: int, now: float) -> RenderableType:
    """The whole view for a terminal of so many columns. now: monotonic seconds."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [_head(view)]
    if view.reason:
        parts.append(Text(f"why: {view.reason}", style="bold red", overflow="ellipsis", no_wrap=True))
    parts += [Text(_engine(view.engine)), _legend()]
    wide = width >= _WIDE
    table = _table("node", "doing", "memory", "free", *(("GPU", "fabric") if wide else ()))
    more = _table("node", "GPU", "fabric")
    for node in view.nodes:
        gpus, fabric = _gpus(node.gpus), _fabric(node.fabric)
        first = (Text(node.name), _doing(node, now), _bar(node.memory), _free(node.memory))
        table.add_row(*first, *((gpus, fabric) if wide else ()))
        more.add_row(node.name, gpus, fabric)
    parts += [table] if wide else [table, more]
    for node in view.nodes:
        parts += [_alert(node.name, text, "yellow") for text in node.alerts]
        parts += [_alert(node.name, f"guard: {text}", "cyan") for text in node.actions]
        if node.halted:
            parts.append(_alert(node.name, f"halted: pid {', '.join(map(str, node.halted))}", "bold red"))
        if node.error is not None:
            parts.append(_alert(node.name, node.error, "bold red"))
    return Group(*parts)


def _table(*titles: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, header_style="bold", no_wrap=True, overflow="ellipsis")
    return table


def line(view: View, now: float) -> str:
    """The view in one line, for logs and pipes."""
    at = time.strftime("%H:%M:%S", time.localtime(view.time))
    parts = [f"{at} {view.name} {view.state}: {_engine(view.engine)}"]
    for node in view.nodes:
        if node.error is not None or node.at is None:
            parts.append(f"{node.name}: {node.error or 'not heard yet'}")
            continue
        words = [f"{format_size(node.memory.free)} free" if node.memory else "", _gpus(node.gpus)]
        words += [f"restarted {node.restarts}x" if node.restarts else "", *node.alerts]
        old = f" ({now - node.at:.0f} s ago)" if now - node.at > _OLD else ""
        parts.append(f"{node.name}{old}: " + ", ".join(word for word in words if word and word != "-"))
    return " | ".join(parts)


def _head(view: View) -> Text:
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(view.name, style="bold")
    text.append("  ")
    text.append(view.state, style=_COLOURS.get(view.state, "bold red"))
    text.append(f"  {view.endpoint}  {view.model}  " if view.endpoint else "  ")
    text.append(time.strftime("%H:%M:%S", time.localtime(view.time)), style="dim")
    return text


def _engine(engine: EngineView) -> str:
    if engine.error is not None:
        return f"the API does not answer: {engine.error}"
    if engine.running is None:
        return "the API has told nothing yet"
    words = [f"{_number(engine.tokens, 1)} tokens/s", f"{_number(engine.running)} running"]
    words += [f"{_number(engine.waiting)} waiting", f"KV {_share(engine.kv_usage)}"]
    if engine.prompt:
        words.append(f"prompts {engine.prompt:.0f} tokens/s")
    if engine.accepted is not None:
        words.append(f"drafts {engine.accepted[0]:.2f} a step, {engine.accepted[1]:.0%} accepted")
    if engine.preemptions:
        words.append(f"{engine.preemptions:.0f} preempted")
    return ", ".join(words)


def _doing(node: NodeView, now: float) -> Text:
    from rich.text import Text

    if node.at is None:
        return Text("no answer" if node.error else "asking", style="bold red" if node.error else "dim")
    words = [] if node.rank is None else [f"rank {node.rank}"]
    words.append(node.phase or (node.guard or "idle"))
    if node.restarts:
        words.append(f"restarted {node.restarts}x")
    style = _COLOURS.get(node.phase, "")
    if node.error is not None or now - node.at > _OLD:
        words.append(f"silent {now - node.at:.0f} s")
        style = "bold red"
    return Text(" ".join(words), style=style)


def _bar(memory: Memory | None) -> Text:
    """Memory by class, one cell a share; free is what stays dark."""
    from rich.text import Text

    if memory is None or not memory.total:
        return Text("?")
    bar, used, done = Text(), 0, 0
    for name, colour in _CLASSES:
        used += getattr(memory, name)
        cells = min(_BAR, round(_BAR * used / memory.total)) - done
        bar.append("█" * max(0, cells), style=colour)
        done += max(0, cells)
    bar.append("░" * (_BAR - done), style="dim")
    return bar


def _legend() -> Text:
    from rich.text import Text

    text = Text("memory: ", style="dim")
    for name, colour in _CLASSES:
        text.append("█ ", style=colour)
        text.append({"kv": "KV", "cache": "page cache"}.get(name, name) + "  ", style="dim")
    text.append("░ free", style="dim")
    return text


def _free(memory: Memory | None) -> str:
    return "?" if memory is None else format_size(memory.free)


def _gpus(gpus: tuple[Gpu, ...]) -> str:
    shown = []
    for gpu in gpus:
        words = [_number(gpu.util, 0, " %"), _number(gpu.power, 0, " W"), _number(gpu.clock, 0, " MHz")]
        shown.append(" ".join([*words, _number(gpu.temperature, 0, " °C")]))
    return "; ".join(shown) or "-"


def _fabric(rates: Mapping[str, tuple[float, float]]) -> str:
    """The busiest link, received and sent, and how many more there are."""
    if not rates:
        return "-"
    name, (rx, tx) = max(rates.items(), key=lambda pair: sum(pair[1]))
    more = f" +{len(rates) - 1}" if len(rates) > 1 else ""
    return f"{name} {_rate(rx)} in {_rate(tx)} out{more}"


def _rate(bytes_per_second: float) -> str:
    bits = bytes_per_second * 8
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= size:
            return f"{bits / size:.1f} {unit}"
    return f"{bits:.0f} bit/s"


def _number(value: float | None, digits: int = 0, unit: str = "") -> str:
    return "?" if value is None else f"{value:.{digits}f}{unit}"


def _share(value: float | None) -> str:
    return "?" if value is None else f"{100 * value:.1f} %"


def _alert(node: str, text: str, style: str) -> Text:
    from rich.text import Text

    return Text(f"{node}: {text}", style=style, no_wrap=True, overflow="ellipsis")
