"""`glmspark plan`: does it fit, how fast will it be, what holds it back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from glmspark.cli.console import AsJson, print_json
from glmspark.cli.recipe import complete_recipe

if TYPE_CHECKING:
    from glmspark.config.recipe import Recipe
    from glmspark.plan.search import Aim
    from glmspark.plan.settings import Asked
    from glmspark.plan.site import Site
    from glmspark.plan.speed.text import Text
    from glmspark.plan.study import Study

_TEXTS = ("prose", "code", "structured", "mixed")
_AIMS = ("stream", "context", "throughput")
_SPECS = ("mtp:2", "mtp:3", "ngram:3", "dflash:7", "dspark:3", "none")
_LINKS = ("roce", "one-shot", "tcp:1", "tcp:10", "tcp:200")
_DEPTH, _PROMPT = 1000, 2048
_MOST = 1024


def _completed(words: tuple[str, ...]) -> Any:
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def plan(  # noqa: PLR0913, PLR0917 - one parameter for each option
    recipe: Annotated[
        str, typer.Argument(help="Recipe, by name or file.", autocompletion=complete_recipe)
    ] = "glm-tiny",
    cluster: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For the nodes of this cluster.yaml, as they are now.")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(help="For so many Sparks as they come; as many as there are ranks.", min=1, max=64),
    ] = None,
    context: Annotated[int | None, typer.Option(help="Longest request, in tokens.", min=1)] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests at once.", min=1, max=4096)] = None,
    tp: Annotated[int | None, typer.Option(help="Ranks that share every layer.", min=1, max=_MOST)] = None,
    pp: Annotated[
        int | None, typer.Option(help="Stages that share out the layers.", min=1, max=_MOST)
    ] = None,
    dcp: Annotated[
        int | None, typer.Option(help="Ranks that share out the KV cache.", min=1, max=_MOST)
    ] = None,
    spec: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD[:N]",
            help="Drafter and its tokens: mtp:3, ngram, suffix, dflash, dspark; or none.",
            autocompletion=_completed(_SPECS),
        ),
    ] = None,
    kv_cache: Annotated[
        str | None, typer.Option(metavar="SIZE", help="KV cache of a rank, such as 8GiB.")
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            metavar="KIND[:GBIT]",
            help="What links the nodes: roce, one-shot (RDMA), tcp:10 (sockets).",
            autocompletion=_completed(_LINKS),
        ),
    ] = None,
    depth: Annotated[
        int, typer.Option(help="Tokens already read when decoding is timed.", min=0, max=10**7)
    ] = _DEPTH,
    prompt: Annotated[
        int, typer.Option(help="Tokens of the prompt whose first token is timed.", min=1, max=10**7)
    ] = _PROMPT,
    text: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="Text that changes are compared at: prose, code, structured or mixed.",
            autocompletion=_completed(_TEXTS),
        ),
    ] = "mixed",
    model: Annotated[
        str | None, typer.Option(metavar="DIR", help="This checkpoint instead of the recipe's.")
    ] = None,
    search: Annotated[
        bool, typer.Option("--search", help="All layouts that fit, best first; --tp and the like narrow it.")
    ] = False,
    aim: Annotated[
        str,
        typer.Option(
            metavar="AIM",
            help="What --search puts first: stream, context or throughput.",
            autocompletion=_completed(_AIMS),
        ),
    ] = "stream",
    learned: Annotated[
        bool, typer.Option("--learned", help="Correct memory by what started engines said.")
    ] = False,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw memory and the time of a step.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plan a recipe before anything is started: memory of each rank, the
    largest context, speed, what to change.

    Without --cluster it plans for Sparks as they come. The model need not be
    here: the published checkpoints are known by name. Every speed is a
    prediction with a range that nine of ten measurements should be in.

    Example: [bold]glmspark plan glm-5.2-4x-mtp --context 131072 --concurrency 4[/bold]

    Example: [bold]glmspark plan glm-5.2-4x-mtp --search --nodes 8 --aim context[/bold]

    Exit codes: 0 it fits, 1 it does not or cannot be planned, 2 wrong use.
    """
    from dataclasses import replace

    from glmspark.config import load_recipe
    from glmspark.models.outlines import outline_for
    from glmspark.plan.settings import Asked, apply, parse_spec
    from glmspark.plan.split import check_layout

    text = _one_of("--text", text, _TEXTS)
    aim = _one_of("--aim", aim, _AIMS)
    asked = Asked(
        tp=tp,
        pp=pp,
        dcp=dcp,
        context=context,
        concurrency=concurrency,
        kv_cache=_size(kv_cache),
        spec=None if spec is None else parse_spec(spec),
    )
    loaded = load_recipe(recipe)
    # A search tries layouts of its own: --dcp 8 need not divide the recipe's TP.
    changed = apply(loaded, replace(asked, tp=None, pp=None, dcp=None) if search else asked)
    outline = outline_for(changed.model.source, model)
    if search:
        check_layout(outline.architecture, tp or 1, pp or 1)
    else:
        check_layout(outline.architecture, changed.layout.tp, changed.layout.pp)
    _check_lengths(changed, depth, prompt)
    if search:
        _check_search(kv_cache=kv_cache, learned=learned, png=png, prompt=prompt)
    site = _site(changed, cluster, nodes, link, search=search)
    if search:
        from glmspark.cli.plan_show import show_search
        from glmspark.plan.search import MANY, refusal_of
        from glmspark.plan.search import search as all_layouts

        options = all_layouts(
            changed,
            outline,
            site,
            aim=cast("Aim", aim),
            text=cast("Text", text),
            depth=depth,
            streams=concurrency or MANY,
            fixed=asked,
        )
        if not options:
            raise refusal_of(changed, outline, site, fixed=asked)
        if as_json:
            print_json([one.to_json() for one in options])
        else:
            show_search(options, changed, site, aim, text)
        return
    from glmspark.plan.study import study

    changed = _with_room(changed, asked, outline, site)
    found = study(changed, outline, site, streams=concurrency or 1, depth=depth, prompt=prompt)
    _tell(found, concurrency or 1, depth, cast("Text", text), learned=learned, png=png, as_json=as_json)


def _tell(
    found: Study,
    streams: int,
    depth: int,
    text: Text,
    *,
    learned: bool,
    png: Path | None,
    as_json: bool,
) -> None:
    """Print it, draw it, and refuse what does not fit."""
    from glmspark.plan.changes import another_node, cheapest
    from glmspark.plan.notes import notes_of
    from glmspark.plan.study import refusal, study, to_json

    lessons = None
    if learned:
        from glmspark.launch.plan_lessons import learn
        from glmspark.plan.learned import apply_lessons

        lessons = learn()
        found = apply_lessons(found, lessons)
    changes = cheapest(found, streams=streams, depth=depth, text=text) if found.speeds else []
    more = another_node(found, streams=streams, depth=depth, text=text) if found.speeds else None
    single = found
    if streams > 1:
        single = study(found.recipe, found.outline, found.site, depth=depth)
    error = refusal(found)
    notes = notes_of(found)
    if png is not None:
        from glmspark.cli.plan_png import draw

        draw(found, png, text)
    if as_json:
        data = to_json(found)
        data["single_stream"] = {kind: one.decode.to_json() for kind, one in single.speeds.items()}
        data["flags"] = _flags(found)
        data["changes"] = [one.to_json() for one in changes]
        data["another_node"] = None if more is None else more.to_json()
        data["notes"] = notes
        data["learned"] = None if lessons is None else [one.to_json() for one in lessons]
        data["refusal"] = None if error is None else error.to_json()
        print_json(data)
        raise typer.Exit(0 if error is None else 1)
    from glmspark.cli.plan_show import show

    show(found, single, streams, _flags(found), changes, more, notes, text)
    if png is not None:
        print(f"drawn: {png}")
    if error is not None:
        raise error


def _flags(found: Study) -> list[str]:
    """vLLM's flags for it, with the sizes that the plan computed."""
    from glmspark.plan.flags import engine_flags, flag_words
    from glmspark.plan.ranks import capture_sizes

    recipe = found.recipe
    flags = engine_flags(recipe, tp=recipe.layout.tp, pp=recipe.layout.pp)
    if not recipe.engine.enforce_eager and found.site.platform == "cuda":
        flags["cudagraph-capture-sizes"] = tuple(map(str, capture_sizes(recipe)))
    return list(flag_words(flags))


def _with_room(recipe: Recipe, asked: Asked, outline: Any, site: Site) -> Recipe:
    """With a larger KV cache where the context or layout asked for needs it and none was named."""
    from glmspark.plan.ranks import request_bytes
    from glmspark.plan.settings import Asked as Changes
    from glmspark.plan.settings import apply
    from glmspark.plan.split import places

    moved = (asked.context, asked.tp, asked.pp, asked.dcp, asked.spec)
    if asked.kv_cache is not None or all(one is None for one in moved):
        return recipe
    layout, length = recipe.layout, recipe.engine.max_model_len
    needed = max(
        request_bytes(recipe, outline, place, site.platform, tp=layout.tp, dcp=layout.dcp, context=length)
        for place in places(len(outline.architecture.layers), layout.tp, layout.pp)[:: layout.tp]
    )
    return apply(recipe, Changes(kv_cache=max(needed, recipe.engine.kv_cache_memory)))


def _check_lengths(recipe: Recipe, depth: int, prompt: int) -> None:
    """Raises UsageError for a depth or prompt that no request can reach."""
    from glmspark.errors import UsageError

    longest = recipe.engine.max_model_len
    for option, value, usual in (("--depth", depth, _DEPTH), ("--prompt", prompt, _PROMPT)):
        if value > max(longest, usual):
            raise UsageError(
                f"{option} {value:,} is beyond the longest request, which is of {longest:,} tokens",
                next=f"choose at most {longest}, or a longer --context",
            )


def _check_search(*, kv_cache: str | None, learned: bool, png: Path | None, prompt: int) -> None:
    """Raises UsageError for what says nothing to a search."""
    from glmspark.errors import UsageError

    given = {
        "--kv-cache": kv_cache is not None,
        "--learned": learned,
        "--png": png is not None,
        "--prompt": prompt != _PROMPT,
    }
    if useless := [option for option, there in given.items() if there]:
        raise UsageError(
            f"--search does not take {', '.join(useless)}",
            next="search without, then plan the layout that you choose with --tp, --pp and --dcp",
        )


def _one_of(option: str, value: str, known: tuple[str, ...]) -> str:
    from glmspark.errors import UsageError

    if value not in known:
        raise UsageError(f"{option} {value} is not known", next=f"choose from {', '.join(known)}")
    return value


def _size(text: str | None) -> int | None:
    from glmspark.config.units import parse_size
    from glmspark.errors import UsageError

    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise UsageError(f"--kv-cache: {error}", next="for example: --kv-cache 8GiB") from None


def _site(recipe: Recipe, cluster: Path | None, nodes: int | None, link: str | None, *, search: bool) -> Site:
    """The nodes: a cluster's as they are now, this machine for a recipe for CPUs, else Sparks as they
    come."""
    from dataclasses import replace

    from glmspark.errors import UsageError
    from glmspark.plan.site import link_named, recipe_link, stock_site

    count = nodes or (8 if search else recipe.layout.world)
    if cluster is not None:
        if nodes is not None:
            raise UsageError("--nodes is for Sparks as they come; --cluster names its own", next="give one")
        from glmspark.cli.nodes import waiting
        from glmspark.config.cluster import load_cluster
        from glmspark.launch.plan_site import cluster_site

        loaded = load_cluster(cluster)
        count = len(loaded.nodes) if search else count
        with waiting(f"asking {', '.join(node.name for node in loaded.nodes[:count])}"):
            site = cluster_site(loaded, recipe, count)
    elif recipe.needs.platform != "cuda":
        from glmspark.launch.plan_here import local_site

        site = local_site(count)
    else:
        site = stock_site(count, recipe_link(recipe))
    return site if link is None else replace(site, link=link_named(link))
