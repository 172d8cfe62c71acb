"""`glmspark speculator`: a drafter of one's own, from a model's hidden states to a recipe's `draft:`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmspark.cli.console import AsJson, print_json

if TYPE_CHECKING:
    from glmspark.speculator.dataset import Dataset

app = typer.Typer(
    name="speculator",
    no_args_is_help=True,
    help="Train a DSpark drafter for a model: capture its hidden states, train, judge, export.\n\n"
    "Example: [bold]glmspark speculator capture package:glm-tiny prompts.jsonl --out states[/bold]",
)
Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="The target: its checkpoint's directory, or package:NAME.")
]
Data = Annotated[Path, typer.Argument(metavar="DATA", help="A directory that `capture` wrote.")]
Target = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="The target, where it lies elsewhere than it was captured from."),
]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; by default CUDA where there is any.")]


@app.command()
def capture(  # noqa: PLR0913, PLR0917 - a typer command's options are its parameters
    model: Model,
    prompts: Annotated[
        Path,
        typer.Argument(
            metavar="PROMPTS",
            help="JSON lines: {'messages': [...]}, and 'kind', 'tools', 'template' where wanted.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Where to write: a new directory.")],
    aux_layers: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...", help="Layers whose states are wanted; by default five, spread evenly."
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.", min=2)] = 256,
    temperature: Annotated[float, typer.Option(help="Of the answers; 0 takes the best token.", min=0)] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the answers, where they are sampled.", min=0)] = 0,
    max_size: Annotated[str, typer.Option(help="Stop when the data set is this large.")] = "8GiB",
    max_model_len: Annotated[int, typer.Option(help="Tokens of prompt and answer at most.", min=16)] = 2048,
    dtype: Annotated[str, typer.Option(help="The engine's: auto, float32, bfloat16.")] = "auto",
    tp: Annotated[int, typer.Option(help="GPUs that share each layer.", min=1)] = 1,
    kv_cache: Annotated[str, typer.Option(help="Memory for the KV cache.")] = "1GiB",
    memory_share: Annotated[
        float | None, typer.Option(help="Share of a GPU's memory that must be free.", min=0.01, max=1)
    ] = None,
    dense: Annotated[bool, typer.Option("--dense", help="Dense attention instead of sparse.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let the model answer prompts, and write its hidden states with the tokens.

    The engine is the one that serves, with the checkpoint's quantisation: a drafter learns from the states
    that it will see. Nothing that is deployed is touched.

    Example: [bold]glmspark speculator capture package:glm-tiny prompts.jsonl --out states[/bold]
    """
    from glmspark.config.units import parse_size
    from glmspark.errors import UsageError

    with _torch():
        from glmspark.speculator import capture as capturing
        from glmspark.speculator import choices
        from glmspark.speculator.prompts import read_prompts

    try:
        most, cache = parse_size(max_size), parse_size(kv_cache)
        wanted = tuple(int(n) for n in aux_layers.split(",")) if aux_layers else None
    except ValueError as error:
        raise UsageError(str(error), next="sizes are like 8GiB, layers like 8,23,39") from error
    directory, asked = _directory(model), read_prompts(prompts)
    known = choices.layers_of(directory)
    layers = wanted or capturing.default_layers(known)
    if any(not 0 < n < known for n in layers) or list(layers) != sorted(set(layers)):
        raise UsageError(
            f"--aux-layers {aux_layers}: the target has {known} layers, whose states are numbered 1 to "
            f"{known - 1}",
            next="name some of them, rising",
        )
    if (out / "dataset.json").exists():
        raise UsageError(f"{out} holds a data set already", next="name another directory, or remove it")
    engine: dict[str, Any] = {
        "dtype": dtype,
        "max_model_len": max_model_len,
        "tensor_parallel_size": tp,
        "kv_cache_memory_bytes": cache,
    }
    if memory_share is not None:
        engine["gpu_memory_utilization"] = memory_share
    job = capturing.Capture(directory, out, layers, max_tokens, temperature, seed, most, engine, dense)
    with _own_output(), _told("sequences") as told:
        done = capturing.run(job, asked, lambda _what, n, of: told(n, of, ""))
    if as_json:
        print_json(done | {"out": str(out), "aux_layers": list(layers)})
        return
    print(
        f"{done['sequences']} sequences, {done['tokens']} tokens, {done['bytes'] / 1e6:.0f} MB in "
        f"{done['seconds']:.0f} s: {out}"
    )
    if not done["whole"]:
        print(f"stopped at --max-size {max_size}")
    if done["left_out"]:
        print(f"{done['left_out']} prompts are longer than --max-model-len and were left out")


@app.command()
def train(  # noqa: PLR0913, PLR0917 - a typer command's options are its parameters
    data: Data,
    out: Annotated[Path, typer.Option(help="Where to train: a directory; what was begun there goes on.")],
    target: Target = None,
    start: Annotated[
        Path | None, typer.Option(help="A drafter's directory to begin with, for fine-tuning.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps in all.", min=1)] = 4000,
    tokens: Annotated[int, typer.Option(help="Tokens of a batch.", min=16)] = 16_384,
    anchors: Annotated[int, typer.Option(help="Drafts a sequence and step.", min=1)] = 32,
    rate: Annotated[float, typer.Option(help="Learning rate at its highest.")] = 2e-3,
    length: Annotated[int, typer.Option(help="Longer sequences are cut to this.", min=16)] = 2048,
    layers: Annotated[int | None, typer.Option(help="The drafter's layers (2).", min=1)] = None,
    heads: Annotated[int | None, typer.Option(help="Its attention heads (4).", min=1)] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Its key heads (2).", min=1)] = None,
    head_dim: Annotated[int | None, typer.Option(help="Size of a head (64).", min=8)] = None,
    mlp: Annotated[int | None, typer.Option(help="Width of its MLPs (512).", min=1)] = None,
    block: Annotated[int | None, typer.Option(help="Tokens a draft (8).", min=2, max=64)] = None,
    window: Annotated[
        int | None, typer.Option(help="Positions it sees (1024); 0 for all of them.", min=0)
    ] = None,
    markov_rank: Annotated[int | None, typer.Option(help="Rank of the Markov head (64).", min=1)] = None,
    mask_token: Annotated[
        int | None, typer.Option(help="The token that stands for what is to be guessed.", min=0)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of weights and batches.", min=0)] = 0,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Train a drafter on captured states; run it again to go on where it stopped.

    Writes training.jsonl, loss.png (with matplotlib), state.pt and provenance.json. On several GPUs or nodes
    start it with torchrun: [bold]torchrun --nproc-per-node 4 -m glmspark speculator train ...[/bold]

    Example: [bold]glmspark speculator train states --out training --steps 4000[/bold]
    """
    with _torch():
        from glmspark.speculator import choices, plot, training
        from glmspark.speculator.dataset import Dataset

    found = Dataset.open(data)
    directory = _target(found, target)
    given = {
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": mlp,
        "block_size": block,
        "window": window,
        "markov_rank": markov_rank,
        "mask_token": mask_token,
    }
    asked = {name: value for name, value in given.items() if value is not None}
    shape = choices.shape_for(found, directory, start, asked)
    settings = training.Settings(
        steps=steps, tokens=tokens, anchors=anchors, rate=rate, length=length, seed=seed
    )
    with _told("steps") as told:
        done = training.train(
            found,
            directory,
            out,
            shape,
            settings,
            start=start,
            device=device,
            progress=lambda n, parts: told(n, steps, f"loss {parts['loss']:.3f}"),
        )
    if os.environ.get("RANK", "0") != "0":
        return
    picture = plot.plot(out) if plot.can_plot() else None
    if as_json:
        print_json(done | {"out": str(out), "plot": str(picture) if picture else None})
        return
    print(f"{done['steps']} steps, {done['tokens']} tokens read, {done['seconds']:.0f} s: {out}")
    if picture is None:
        print("no loss.png: matplotlib is not installed")


@app.command("eval")
def evaluate(
    drafter: Annotated[
        Path, typer.Argument(metavar="DRAFTER", help="A training's or an exported drafter's directory.")
    ],
    data: Data,
    target: Target = None,
    everything: Annotated[bool, typer.Option("--all", help="Also the sequences that training saw.")] = False,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """How many drafts the target would accept, by kind of text and place, on sequences kept out of training.

    Example: [bold]glmspark speculator eval training states[/bold]
    """
    with _torch():
        from glmspark.speculator import choices, evaluation, store
        from glmspark.speculator.dataset import Dataset
        from glmspark.speculator.ranks import Ranks

    found = Dataset.open(data)
    shared = store.read_shared(_target(found, target))
    made = choices.drafter_in(drafter)
    if made.shape.aux_layers != found.aux_layers:
        from glmspark.speculator.shape import DrafterError

        raise DrafterError(
            f"the drafter reads layers {list(made.shape.aux_layers)}, the data set has "
            f"{list(found.aux_layers)}"
        )
    with _told("sequences") as told:
        counts = evaluation.evaluate(
            made,
            shared,
            found.sequences(held_out=None if everything else True),
            device=Ranks.at_hand(device).device,
            progress=lambda n: told(n, 0, ""),
        )
    if as_json:
        print_json({kind: one.to_json() for kind, one in counts.items()})
        return
    print(f"{'kind':14} {'sequences':>9} {'accepted a step':>15}  share accepted by place")
    for kind, one in counts.items():
        shares = " ".join(f"{share:.2f}" for share in one.by_place)
        print(f"{kind:14} {one.sequences:9} {one.per_step:15.2f}  {shares}")


@app.command()
def export(
    training: Annotated[Path, typer.Argument(metavar="TRAINING", help="A training's directory.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Where to write the drafter: a new directory.")],
    as_json: AsJson = False,
) -> None:
    """Write a trained drafter as vLLM and the recipes' draft.source take it.

    Example: [bold]glmspark speculator export training drafter[/bold]
    """
    from glmspark.config.files import read_json

    with _torch():
        from glmspark.speculator import choices, store
        from glmspark.speculator.shape import DrafterError

    if (out / "config.json").exists():
        raise DrafterError(f"{out} holds a model already", next="name another directory, or remove it")
    made = choices.drafter_in(training, trained=True)
    provenance = read_json(training / "provenance.json")
    store.write_drafter(made, out, str(provenance.get("target", "")), provenance)
    if as_json:
        print_json({"out": str(out), "shape": made.shape.to_json()})
        return
    tokens = made.shape.block_size
    print(f"in a recipe: draft: {{method: dspark, tokens: {tokens}, source: 'path:{out.resolve()}'}}")


# --- what they share ----------------------------------------------------------------------------------------


@contextmanager
def _torch() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("torch", "safetensors"):
            raise
        from glmspark.errors import UsageError

        raise UsageError(
            f"drafters are made with {error.name}, which is not installed here",
            next="pip install 'glmspark[speculator]'",
        ) from error


@contextmanager
def _own_output() -> Iterator[None]:
    """Standard output is ours: what vLLM and its processes print there goes to standard error meanwhile."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def _told(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """Progress on standard error: a line that is written over on a terminal, one in ten seconds elsewhere."""
    terminal, last, begun = sys.stderr.isatty(), [0.0], time.monotonic()

    def told(done: int, of: int, more: str) -> None:
        now = time.monotonic()
        if now - begun < 2 or now - last[0] < (0.2 if terminal else 10):
            return
        last[0] = now
        text = f"{done}{f' of {of}' if of else ''} {what}, {now - begun:.0f} s{', ' if more else ''}{more}"
        sys.stderr.write(f"\r\x1b[K{text}" if terminal else f"{text}\n")
        sys.stderr.flush()

    try:
        yield told
    finally:
        if terminal and last[0]:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _directory(model: str) -> Path:
    from glmspark.config.recipe import ModelSource
    from glmspark.models.source import locate

    if model.startswith("package:"):
        return locate(ModelSource("package", model.removeprefix("package:")))
    return Path(model.removeprefix("path:")).expanduser().resolve()


def _target(found: Dataset, target: str | None) -> Path:
    return _directory(target or str(found.provenance.get("target", "")))
