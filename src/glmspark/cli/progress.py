"""What people see while a deployment starts: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TextIO

from glmspark.cli.console import wants_colour

if TYPE_CHECKING:
    from rich.console import RenderableType

    from glmspark.launch.record import Deployment, Verdict


class Display(Protocol):
    """Shows a start as it goes on."""

    def update(self, deployment: Deployment, verdicts: list[Verdict]) -> None:
        """Show the record and the verdicts so far."""

    def note(self, text: str) -> None:
        """Show what is being done before ranks are started."""

    def finish(self) -> None:
        """Nothing more will come."""

    def __enter__(self) -> Display: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def make_display(name: str, stream: TextIO) -> Display:
    """The display that suits a stream."""
    return LiveDisplay(name, stream) if wants_colour(stream) else PlainDisplay(name, stream)


def verdict_line(verdict: Verdict) -> str:
    """One verdict as a line."""
    word = "pass" if verdict.passed else "FAIL"
    return f"{word}  {verdict.name}: {verdict.evidence} ({verdict.seconds:.1f} s)"


class PlainDisplay:
    """A line for each change, with the seconds since the start."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self._name = name
        self._stream = stream
        self._phases: dict[int, str] = {}
        self._verdicts: set[str] = set()
        self._announced = False
        self._proving = False
        self._began = time.time()
        self._noted = ""

    def update(self, deployment: Deployment, verdicts: list[Verdict]) -> None:
        """Print what is new."""
        if not self._announced:
            self._announced = True
            plan = deployment.plan
            self._print(
                0.0, f"starting {self._name}: TP{plan['tp']} PP{plan['pp']}, {deployment.endpoint.url}"
            )
        for rank in deployment.ranks:
            if rank.since and self._phases.get(rank.rank) != rank.phase:
                self._phases[rank.rank] = rank.phase
                self._print(rank.since - deployment.created, f"rank {rank.rank}: {rank.phase}")
        if deployment.proving and not self._proving:
            self._proving = True
            self._print(time.time() - deployment.created, "asking the canaries")
        for verdict in verdicts:
            if verdict.name not in self._verdicts:
                self._verdicts.add(verdict.name)
                self._print(time.time() - deployment.created, verdict_line(verdict))
                for cause in verdict.causes:
                    self._print(None, f"      likely: {cause}")

    def note(self, text: str) -> None:
        """Print it with the seconds since then; the progress of one thing as one line."""
        subject = text.partition(": ")[0]
        if subject != self._noted:
            self._noted = subject
            self._print(time.time() - self._began, text)

    def _print(self, seconds: float | None, text: str) -> None:
        head = " " * 9 if seconds is None else f"{max(seconds, 0.0):7.1f} s"
        print(f"{head}  {text}", file=self._stream, flush=True)

    def finish(self) -> None:
        """All lines are printed already."""

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class LiveDisplay:
    """A table that is drawn again and again, so that the elapsed times move."""

    def __init__(self, name: str, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._name = name
        self._deployment: Deployment | None = None
        self._verdicts: list[Verdict] = []
        self._noted = f"planning {name}"
        self._live = Live(
            console=Console(file=stream), get_renderable=self._draw, refresh_per_second=5, transient=False
        )

    def update(self, deployment: Deployment, verdicts: list[Verdict]) -> None:
        """Take what is new; the next drawing shows it."""
        self._deployment, self._verdicts = deployment, verdicts

    def note(self, text: str) -> None:
        """Show it until the first rank is started."""
        self._noted = text

    def _draw(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        deployment = self._deployment
        if deployment is None:
            return Text(self._noted, style="dim")
        now = time.time() if not deployment.state.over else deployment.since
        plan = deployment.plan
        title = Text.assemble(
            (self._name, "bold"), f"  TP{plan['tp']} PP{plan['pp']}  {now - deployment.created:.0f} s"
        )
        table = Table(box=None, pad_edge=False, show_header=False)
        for rank in deployment.ranks:
            spent = f"{now - rank.since:.0f} s" if rank.since else ""
            table.add_row(
                f"  rank {rank.rank}", Text(rank.node, style="dim"), rank.phase, Text(spent, style="dim")
            )
        lines = [Text("  asking the canaries")] if deployment.proving or self._verdicts else []
        for verdict in self._verdicts:
            lines.append(
                Text(f"    {verdict_line(verdict)}", style="green" if verdict.passed else "bold red")
            )
            lines += [Text(f"          likely: {cause}", style="yellow") for cause in verdict.causes]
        return Group(title, table, *lines)

    def finish(self) -> None:
        """Draw a last time and leave it standing."""
        self._live.stop()

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
