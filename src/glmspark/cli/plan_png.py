"""A plan as a picture: memory of each rank, and what a decoding step's time goes into."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from glmspark.cli.plan_show import parts_of

if TYPE_CHECKING:
    from glmspark.plan.study import Study

_COLOURS = {
    "weights": "#3b6fb6",
    "drafter": "#45b0c4",
    "KV cache": "#4a9e5c",
    "work space": "#d9a93a",
    "graphs, NCCL": "#9a5fb0",
    "host": "#c8553d",
    "system": "#8a8a8a",
    "free": "#dddddd",
}
_GIB = 2**30


def draw(found: Study, file: Path, text: str) -> None:
    """Write the picture as PNG. text: the kind whose step is drawn. Raises GlmsparkError where matplotlib is
    not installed, UsageError where the file cannot be written."""
    import io

    from glmspark.config.files import write_atomic
    from glmspark.errors import GlmsparkError

    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise GlmsparkError(
            "pictures need matplotlib, which is not installed",
            step="draw the plan",
            next="pip install 'glmspark[report]', or matplotlib alone",
        ) from None
    figure = Figure(figsize=(11, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots(1, 2 if found.speeds else 1, squeeze=False)[0]
    _memory(axes[0], found)
    if found.speeds:
        _step(axes[1], found, text)
    figure.suptitle(f"{found.recipe.name}, {found.recipe.layout.words()}")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": "glmspark"})
    write_atomic(file, picture.getvalue())


def _memory(axis: Any, found: Study) -> None:
    seats = {seat.name: seat for seat in found.site.seats}
    names = [f"rank {rank.place.rank}" for rank in found.ranks]
    begin = [0.0] * len(names)
    parts = [dict(parts_of(rank, seats[rank.node])) for rank in found.ranks]
    for kind, colour in _COLOURS.items():
        sizes = [one.get(kind, 0) / _GIB for one in parts]
        if any(sizes):
            axis.barh(names, sizes, left=begin, color=colour, label=kind)
            begin = [left + size for left, size in zip(begin, sizes, strict=True)]
    axis.axvline(max(seat.total for seat in seats.values()) / _GIB, color="black", linewidth=1)
    axis.invert_yaxis()
    axis.set_xlabel("GiB")
    axis.set_title("memory")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=4, frameon=False, fontsize=8)


def _step(axis: Any, found: Study, text: str) -> None:
    kind = text if text in found.speeds else next(iter(found.speeds))
    one = found.speeds[kind]
    parts = sorted(
        ((name, 1000 * seconds) for name, seconds in one.parts.items() if seconds), key=lambda p: p[1]
    )
    axis.barh([name for name, _ in parts], [size for _, size in parts], color="#3b6fb6")
    axis.set_xlabel("ms")
    low, high = one.decode.low, one.decode.high
    axis.set_title(f"a decoding step, {kind} text: {one.decode.value:.1f} tok/s ({low:.1f}-{high:.1f})")
