"""`glmspark bench`: how fast an endpoint is, and how sure that is."""

from __future__ import annotations

import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from glmspark.cli.console import AsJson, complete_deployment, print_json, wants_colour

if TYPE_CHECKING:
    from glmspark.measure.compare import Comparison
    from glmspark.measure.record import Conditions, Point, Record
    from glmspark.measure.rounds import Samples
    from glmspark.measure.stream import Asker


class _RunUnlessNamed(TyperGroup):
    """`glmspark bench URL` means `glmspark bench run URL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("--help", "-h")):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="bench",
    cls=_RunUnlessNamed,
    help="Measure how fast an endpoint is: by kind of text, by depth, with many streams, mixed.\n\n"
    "Example: [bold]glmspark bench[/bold], or [bold]glmspark bench http://spark1:8000/v1[/bold]",
)

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="DEPLOYMENT|URL",
        help="A deployment, or any OpenAI endpoint; the only deployment if not given.",
        autocompletion=complete_deployment,
    ),
]
Answer = Annotated[int, typer.Option(min=2, help="Tokens of each answer.")]
Thinking = Annotated[bool, typer.Option("--thinking/--no-thinking", help="Let the model reason first.")]
Natural = Annotated[
    bool, typer.Option("--natural", help="Answers end where the model ends them; else all are equally long.")
]
Temperature = Annotated[float, typer.Option(min=0.0, max=2.0, help="0 always takes the likeliest token.")]
Model = Annotated[str | None, typer.Option(help="Model, where the endpoint serves several.")]


def _numbers(text: str | None) -> list[int] | None:
    from glmspark.errors import UsageError

    if text is None:
        return None
    try:
        found = [int(part) for part in text.split(",") if part]
    except ValueError:
        found = []
    if not found or min(found) < 0:
        raise UsageError(f"{text!r} is no list of numbers", next="for example 1024,8192")
    return found


def _names(text: str | None, known: tuple[str, ...], what: str) -> list[str]:
    import difflib

    from glmspark.errors import UsageError

    chosen = text.split(",") if text else list(known)
    for one in chosen:
        if one not in known:
            near = difflib.get_close_matches(one, known, 1)
            raise UsageError(
                f"there is no {what} {one!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
                next=f"there are {', '.join(known)}",
            )
    return chosen


@app.command("run")
def run(  # noqa: PLR0913, PLR0917 - its options
    target: Target = None,
    workloads: Annotated[
        str | None, typer.Option(help="Some of kinds,depth,concurrency,mixed; all if not given.")
    ] = None,
    kinds: Annotated[
        str | None, typer.Option(help="Some of prose,code,structured,reasoning,languages.")
    ] = None,
    depths: Annotated[str | None, typer.Option(help="Prompt lengths in tokens, as 1024,8192.")] = None,
    streams: Annotated[str | None, typer.Option(help="How many streams at once, as 2,4,8.")] = None,
    answer: Answer = 128,
    rounds: Annotated[int, typer.Option(min=3, help="Most rounds of a point.")] = 15,
    width: Annotated[
        float, typer.Option(min=0.001, help="A point is sure at this half-width over median.")
    ] = 0.03,
    thinking: Thinking = False,
    natural: Natural = False,
    temperature: Temperature = 0.0,
    model: Model = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the record goes; bench-TIME.json if not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure an endpoint and keep the record as one JSON file.

    Every prompt is new, so that the prefix cache cannot flatter; the first round of a point does not count; a
    point ends when a repetition would give the same figure within 3 %, or says that it would not. Ctrl-C
    keeps what there is.

    Example: [bold]glmspark bench --workloads kinds,depth --depths 1024,8192[/bold]
    """
    from glmspark.measure.bench import DEPTHS, STREAMS, WORKLOADS, Wanted, new_seed
    from glmspark.measure.rounds import Settings
    from glmspark.measure.texts import KINDS

    wanted = Wanted(
        _names(workloads, WORKLOADS, "workload"),
        _names(kinds, KINDS, "kind"),
        depths=_numbers(depths) or DEPTHS,
        streams=_numbers(streams) or STREAMS,
    )
    settings = Settings(
        new_seed(),
        answer=answer,
        thinking=thinking,
        temperature=temperature,
        fixed_length=not natural,
        width=width,
        most=rounds,
        least=min(5, rounds),
    )
    path = out or Path(f"bench-{_stamp()}.json")
    record = _run(_measure(target, model, wanted, settings, path), path)
    if as_json:
        print_json(record.model_dump())
    else:
        _show(record, path)
    if any(not point.rounds for point in record.points):
        raise typer.Exit(1)


def _stamp() -> str:
    from datetime import datetime

    return datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")


def _run(work: Any, path: Path | None) -> Any:
    """Run a coroutine; Ctrl-C ends it within its connections' ends and says where what there is lies."""
    import asyncio

    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        if path is not None and path.exists():
            print(f"interrupted; what was measured is in {path}", file=sys.stderr)
        raise


async def endpoint(stack: AsyncExitStack, target: str | None, model: str | None) -> tuple[Asker, Conditions]:
    """The endpoint a word names, ready to be asked, and what is known of it. Raises GlmsparkError."""
    from glmspark.measure.bench import served
    from glmspark.measure.record import Conditions
    from glmspark.measure.stream import Asker

    if target is not None and target.startswith(("http://", "https://")):
        asker = Asker(target, os.environ.get("GLMSPARK_API_KEY"))
        stack.push_async_callback(asker.close)
        name, context, engine = await served(asker, model)
        return asker, Conditions(url=target, model=name, context=context, engine=engine)
    from glmspark.launch.status import pick

    place = pick(target, serving=True)
    deployment = place.read()
    assert deployment is not None  # noqa: S101 - pick() has read it
    reached = deployment.endpoint
    if deployment.cluster is not None:
        from glmspark.launch.cluster_prove import reached as through_ssh

        reached = stack.enter_context(through_ssh(deployment))
    asker = Asker(reached.url, place.read_key())
    stack.push_async_callback(asker.close)
    name, context, engine = await served(asker, model)
    return asker, Conditions(
        url=deployment.endpoint.url,
        model=name,
        context=context,
        engine=engine,
        deployment=deployment.name,
        lock_digest=_digest(place.path / "lock.json"),
    )


def _digest(path: Path) -> str | None:
    """SHA-256 of the lock file, which says what all was started; a deployment of one machine has none."""
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


async def _measure(target: str | None, model: str | None, wanted: Any, settings: Any, path: Path) -> Record:
    from glmspark.measure.bench import Bench, points_of

    async with AsyncExitStack() as stack:
        asker, conditions = await endpoint(stack, target, model)
        conditions = conditions.model_copy(
            update={
                "thinking": settings.thinking,
                "temperature": settings.temperature,
                "answer_tokens": settings.answer,
                "fixed_length": settings.fixed_length,
                "seed": settings.seed,
            }
        )
        points = points_of(wanted, conditions.context, settings.answer)
        watcher = _Lines(len(points))
        return await Bench(asker, conditions, settings, watcher, path).run(points)


class _Lines:
    """One line a point on standard error; on a terminal also the round it is in."""

    def __init__(self, count: int) -> None:
        self._count, self._number = count, 0
        self._live = wants_colour(sys.stderr)

    def round(self, point: Point, samples: Samples) -> None:
        from glmspark.measure.report import name_of

        if self._live:
            found = samples.main(point.streams)
            now = f"{found.median:.1f} tok/s" if found else "no answer"
            print(
                f"\r\x1b[K  {name_of(point)}: round {samples.rounds}, {now}",
                end="",
                file=sys.stderr,
                flush=True,
            )

    def point(self, point: Point) -> None:
        from glmspark.measure.report import name_of

        self._number += 1
        start = "\r\x1b[K" if self._live else ""
        print(
            f"{start}[{self._number}/{self._count}] {name_of(point)}: {_said(point)}",
            file=sys.stderr,
            flush=True,
        )


def _said(point: Point) -> str:
    from glmspark.measure.report import figure

    if not point.rounds:
        return f"no answer: {point.first_failure or 'nothing came'}"
    parts = [f"{figure(point.decode)} tok/s a stream"]
    if point.streams > 1:
        parts.append(f"{figure(point.throughput)} tok/s together")
    parts.append(f"first token after {figure(point.ttft, 3)} s")
    return ", ".join(parts)


def _show(record: Record, path: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from glmspark.measure.report import figure, name_of

    table = Table(title=f"{record.conditions.model} at {record.conditions.url}", title_justify="left")
    table.add_column("workload", no_wrap=True)
    for name in ("prompt", "tok/s each", "tok/s all", "TTFT s", "prefill/s", "accepted"):
        table.add_column(name, justify="right", no_wrap=True)
    for point in record.points:
        accepted = f"{point.drafts.length:.2f}" if point.drafts and point.drafts.length else "-"
        table.add_row(
            name_of(point) + ("" if point.enough or point.workload == "mixed" else " ?"),
            str(point.prompt_tokens),
            figure(point.decode),
            figure(point.throughput) if point.streams > 1 else "-",
            figure(point.ttft, 3),
            figure(point.prefill, 0) if point.workload == "depth" else "-",
            accepted,
        )
    console = Console()
    console.print(table)
    if any(not point.enough and point.workload != "mixed" for point in record.points):
        console.print(
            "?: a repetition may differ by more than asked (--width): try a quieter machine or more --rounds",
            highlight=False,
        )
    for point in record.points:
        for text in (point.note, point.first_failure):
            if text:
                console.print(f"{name_of(point)}: {text}", highlight=False, soft_wrap=True)
    console.print(f"record: {path}", highlight=False, soft_wrap=True)


@app.command("compare")
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A deployment or URL.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    kind: Annotated[str, typer.Option(help="Kind of text.")] = "prose",
    depth: Annotated[int, typer.Option(min=0, help="Tokens before the question.")] = 0,
    streams: Annotated[int, typer.Option(min=1, help="Streams at once.")] = 1,
    pairs: Annotated[int, typer.Option(min=3, help="Rounds of each.")] = 12,
    answer: Answer = 128,
    as_json: AsJson = False,
) -> None:
    """Measure two endpoints in turns and give the ratio of B to A with its interval.

    Example: [bold]glmspark bench compare glm-eager glm-graphs --kind code[/bold]
    """
    from glmspark.measure.texts import KINDS

    [chosen] = _names(kind, KINDS, "kind")
    found = _run(_compared(a, b, chosen, depth, streams, pairs, answer), None)
    if as_json:
        print_json(found.model_dump())
    else:
        _show_comparison(found)
    if not found.ratios:
        raise typer.Exit(1)


async def _compared(
    a: str, b: str, kind: str, depth: int, streams: int, pairs: int, answer: int
) -> Comparison:
    from glmspark.measure.bench import new_seed
    from glmspark.measure.compare import compare as measure
    from glmspark.measure.record import Point
    from glmspark.measure.rounds import Rounds, Settings

    def tick(found: Comparison) -> None:
        if wants_colour(sys.stderr):
            print(f"\r\x1b[K  pair {found.pairs} of {pairs}", end="", file=sys.stderr, flush=True)

    async with AsyncExitStack() as stack:
        sides = []
        for target in (a, b):
            asker, conditions = await endpoint(stack, target, None)
            settings = Settings(new_seed(), answer=answer)
            sides.append(
                (Rounds(asker, conditions.model, settings, conditions.context, lambda *_: None), conditions)
            )
        point = Point(workload="kind", kind=kind, streams=streams, wanted_depth=depth)
        found = await measure(sides[0], sides[1], point, pairs, tick)
    if wants_colour(sys.stderr):
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return found


def _show_comparison(found: Comparison) -> None:
    print(f"A  {found.a.model} at {found.a.url}\nB  {found.b.model} at {found.b.url}")
    words = {"decode": "tok/s of a stream", "throughput": "tok/s together", "ttft": "time to the first token"}
    for figure, estimate in found.ratios.items():
        low, high = estimate.low or 0.0, estimate.high or 0.0
        said = "" if found.differs[figure] else "   no difference shown"
        print(f"B/A {words[figure]}: {estimate.median:.3f} ({low:.3f} to {high:.3f}){said}")
    if not found.ratios:
        print(f"no pair of rounds succeeded: {found.first_failure or 'nothing came'}")
    elif found.failures:
        print(f"failed requests: {found.failures}: {found.first_failure}")


@app.command("report")
def report(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Records that `glmspark bench` wrote.")
    ],
    out: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("bench.html"),
    png: Annotated[Path | None, typer.Option(help="Directory for the plots as PNG, too.")] = None,
) -> None:
    """Make one HTML page with plots from one or many records.

    Example: [bold]glmspark bench report bench-*.json --out bench.html --png plots[/bold]
    """
    from glmspark.config.files import make_dir, write_atomic
    from glmspark.measure.plots import plots
    from glmspark.measure.record import read_record
    from glmspark.measure.report import page

    records = [read_record(file) for file in files]
    drawn = list(plots(records))
    write_atomic(out, page(records, drawn).encode())
    if png is not None:
        make_dir(png, mode=0o755)
        for plot in drawn:
            write_atomic(png / f"{plot.name}.png", plot.png)
    print(f"{out}: {len(records)} records, {len(drawn)} plots")
