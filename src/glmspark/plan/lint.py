"""Everything that can be said about a recipe file without starting it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from glmspark.config.loader import check_recipe
from glmspark.config.recipe import Recipe
from glmspark.config.yamltree import Loc, Problem, YamlTree, read_yaml
from glmspark.models import Checkpoint, CheckpointError, inspect_checkpoint, locate
from glmspark.plan.checks import check_context, check_drafter
from glmspark.plan.engine_help import EngineHelp, check_arguments
from glmspark.plan.errors import PlanError
from glmspark.plan.facts import MachineFacts
from glmspark.plan.known_bad import known_bad
from glmspark.plan.local import plan_local
from glmspark.plan.setting import Setting
from glmspark.plan.split import check_layout

__all__ = ["Lint", "lint_recipe"]


@dataclass(frozen=True)
class Lint:
    """problems: what must be changed, in order of lines. notes: what could not be checked here, and why."""

    recipe: Recipe | None
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the recipe can be used."""
        return not self.problems


def lint_recipe(raw: bytes, engine: EngineHelp | None = None) -> Lint:
    """Check a recipe's bytes: format and values, patch names, and, where its checkpoint lies on this machine,
    whether the model can be split and run as the recipe says. Memory is not judged: that is the plan's, on
    the machine that serves.

    engine: what the engine that is to run it says of its flags; its arguments are checked against that, too.
    """
    recipe, problems = check_recipe(raw)
    if recipe is None:
        return Lint(None, tuple(problems), ())
    tree = read_yaml(raw)
    problems += _patches(recipe, tree)
    notes = [f"not yet: {sentence}" for sentence in recipe.lacks]
    if engine is not None:
        problems += [
            Problem(_line(tree, misfit.place), misfit.message, misfit.hint)
            for misfit in check_arguments(recipe, engine)
        ]
    try:
        checkpoint = inspect_checkpoint(locate(recipe.model.source))
    except CheckpointError as error:
        notes.append(f"layout and context are not checked against the model: {error.message}")
        problems += _combinations(recipe, None, tree)
    else:
        problems += _against_model(recipe, checkpoint, tree)
    ordered = sorted(problems, key=lambda problem: problem.line or 0)
    return Lint(recipe, tuple(ordered), tuple(notes))


def _patches(recipe: Recipe, tree: YamlTree) -> list[Problem]:
    wanted = {"required": recipe.patches.required, "optional": recipe.patches.optional}
    if not any(wanted.values()):
        return []
    from glmspark.engine.registry import PATCHES

    known = sorted(patch.name for patch in PATCHES)
    return [
        Problem(
            _line(tree, ("patches", key, i)), f"unknown patch {name!r}", f"patches are {', '.join(known)}"
        )
        for key, names in wanted.items()
        for i, name in enumerate(names)
        if name not in known
    ]


def _against_model(recipe: Recipe, checkpoint: Checkpoint, tree: YamlTree) -> list[Problem]:
    """What the plan refuses on a machine that has memory and cores enough; all of it, not only the first."""
    layout = recipe.layout
    roomy = MachineFacts("any", tuple(range(layout.tp * layout.pp)), 2**60, 2**60)
    drafter: Loc = ("engine", "args", "speculative_config") if recipe.draft is None else ("draft",)
    checks: list[tuple[Loc, Callable[[], object]]] = [
        (("layout",), lambda: check_layout(checkpoint.architecture, layout.tp, layout.pp)),
        (drafter, lambda: check_drafter(recipe, checkpoint)),
    ]
    on_cpu = recipe.needs.platform != "cuda"
    if on_cpu:
        checks.append((("engine", "max_model_len"), lambda: check_context(recipe, checkpoint, roomy)))
    problems = [problem for place, check in checks for problem in _refusal(check, tree, place)]
    problems = problems or _combinations(recipe, checkpoint, tree)
    if on_cpu and not problems:
        place = ("engine", "kv_cache_memory")
        problems += _refusal(lambda: plan_local(recipe, checkpoint, facts=roomy), tree, place)
    return problems


def _combinations(recipe: Recipe, checkpoint: Checkpoint | None, tree: YamlTree) -> list[Problem]:
    """What is known to be bad; a recipe that says what it lacks says that itself."""
    if recipe.lacks:
        return []
    layout = recipe.layout
    setting = Setting(
        recipe,
        checkpoint,
        recipe.needs.platform or "cpu",
        tp=layout.tp,
        pp=layout.pp,
        dcp=layout.dcp,
        nodes=recipe.needs.nodes or layout.world,
    )
    return [
        Problem(_line(tree, bad.rule.place), bad.reason, f"{bad.rule.next} ({bad.rule.source})")
        for bad in known_bad(setting)
    ]


def _refusal(check: Callable[[], object], tree: YamlTree, place: Loc) -> list[Problem]:
    try:
        check()
    except PlanError as error:
        return [Problem(_line(tree, place), error.message, error.next)]
    return []


def _line(tree: YamlTree, place: Loc) -> int | None:
    for length in range(len(place), -1, -1):
        if place[:length] in tree.lines:
            return tree.lines[place[:length]]
    return None
