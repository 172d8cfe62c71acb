"""The losses of a training as a picture."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from glmspark.config.files import write_atomic
from glmspark.speculator.shape import DrafterError
from glmspark.speculator.training import LOSSES

__all__ = ["can_plot", "plot"]


def can_plot() -> bool:
    """Whether matplotlib is there (it comes with `glmspark[speculator]`)."""
    return importlib.util.find_spec("matplotlib") is not None


def plot(directory: Path) -> Path:
    """Draw loss.png beside the losses in a training's directory; returns its path."""
    import io

    from matplotlib.figure import Figure

    path = directory / LOSSES
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        steps = [row["step"] for row in rows]
        curves = {name: [row[name] for row in rows] for name in ("ce", "tv", "confidence", "accepted")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DrafterError(f"there are no losses to draw in {path}", seen=str(error)[:200]) from error
    figure = Figure(figsize=(8, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for name in ("ce", "tv", "confidence"):
        above.plot(
            steps, curves[name], label={"ce": "cross entropy", "tv": "total variation"}.get(name, name)
        )
    above.set_yscale("log")
    above.set_ylabel("loss")
    above.legend()
    below.plot(steps, curves["accepted"], color="black")
    below.set_ylabel("accepted a step, teacher-forced")
    below.set_xlabel("step")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    picture = directory / "loss.png"
    write_atomic(picture, buffer.getvalue())
    return picture
