"""All patches: judged against the vLLM at hand, and applied."""

from __future__ import annotations

import os
from collections.abc import Iterable

from glmspark.engine.code import Code, CodeNotFoundError
from glmspark.engine.patch import (
    OPTIONAL_VARIABLE,
    REQUIRED_VARIABLE,
    Finding,
    Holds,
    Outcome,
    Patch,
    PatchRefusedError,
    State,
    Target,
)
from glmspark.engine.patches import (
    cpu_dcp,
    cpu_fork,
    cpu_pipeline,
    cpu_ray,
    cpu_rotary,
    dcp_query,
    dense_attention,
    dense_decode,
    draft_policy,
    fabric_addresses,
    mla_decode,
    nvfp4_experts,
    pipeline_aux_states,
    pipeline_speculation,
    pruned_experts,
    rank_loading,
    ray_nodes,
    small_heads,
    spark_loader,
    sparse_aux_states,
    sparse_decode,
)

PATCHES: tuple[Patch, ...] = (
    dense_attention.PATCH,
    pruned_experts.PATCH,
    rank_loading.PATCH,
    spark_loader.PATCH,
    small_heads.PATCH,
    mla_decode.PATCH,
    dense_decode.PATCH,
    sparse_decode.PATCH,
    nvfp4_experts.PATCH,
    cpu_rotary.PATCH,
    cpu_pipeline.PATCH,
    cpu_fork.PATCH,
    cpu_ray.PATCH,
    ray_nodes.PATCH,
    fabric_addresses.PATCH,
    pipeline_speculation.PATCH,
    sparse_aux_states.PATCH,  # before the next, which wraps what it makes
    pipeline_aux_states.PATCH,
    cpu_dcp.PATCH,
    dcp_query.PATCH,
    draft_policy.PATCH,
)


def optional_patches(patches: Iterable[Patch] = PATCHES) -> frozenset[str]:
    """Names in GLMSPARK_OPTIONAL_PATCHES. Raises `PatchRefusedError` for a name that no patch has."""
    names = frozenset(
        part for part in os.environ.get(OPTIONAL_VARIABLE, "").replace(" ", "").split(",") if part
    )
    known = {patch.name for patch in patches}
    if unknown := sorted(names - known):
        raise PatchRefusedError(
            f"{OPTIONAL_VARIABLE} names {', '.join(unknown)}; the patches are {', '.join(sorted(known))}"
        )
    return names


def check_required(patches: Iterable[Patch] = PATCHES) -> None:
    """Raises `PatchRefusedError` where GLMSPARK_REQUIRED_PATCHES names one that this glmspark does not have:
    the image is older than the recipe. Whether those it has apply is for each to say."""
    wanted = frozenset(
        part for part in os.environ.get(REQUIRED_VARIABLE, "").replace(" ", "").split(",") if part
    )
    if missing := sorted(wanted - {patch.name for patch in patches}):
        raise PatchRefusedError(
            f"the recipe requires the patch {', '.join(missing)}, which the glmspark beside this engine does "
            "not have\n  next: install here the glmspark that the recipe is from (`glmspark image build`)"
        )


def judge(patch: Patch, target: Target, code: Code, *, optional: bool = False) -> Outcome:
    """What should become of `patch` on this target and code. Changes nothing.

    APPLIED here means: needed, and its precondition holds.
    """
    if reason := patch.needed(target):
        return Outcome(patch, State.NOT_NEEDED, reason)
    finding = _version(patch, target) or _precondition(patch, code)
    if finding.holds is Holds.YES:
        return Outcome(patch, State.APPLIED, finding.seen)
    if finding.holds is Holds.SUPERSEDED:
        return Outcome(patch, State.SUPERSEDED, finding.seen)
    return Outcome(patch, State.SKIPPED if optional else State.REFUSED, finding.seen)


def apply(
    target: Target, code: Code, *, patches: Iterable[Patch] = PATCHES, refuse: bool = True
) -> list[Outcome]:
    """Judge every patch, then apply those that hold; all or none.

    Raises `PatchRefusedError` naming every refused patch before any is applied, unless `refuse` is off (for
    listing): then the refused ones are left out.
    """
    patches = tuple(patches)
    if refuse:
        check_required(patches)
    optional = optional_patches(patches)
    outcomes = [judge(patch, target, code, optional=patch.name in optional) for patch in patches]
    refused = [outcome for outcome in outcomes if outcome.state is State.REFUSED]
    if refused and refuse:
        raise PatchRefusedError(_refusal(refused, target))
    for outcome in outcomes:
        if outcome.state is State.APPLIED:
            outcome.patch.apply()
    return outcomes


def _version(patch: Patch, target: Target) -> Finding | None:
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        # A local part (+cpu, +cu130) names the build, not the code.
        version = Version(Version(target.version).public)
    except InvalidVersion:
        return Finding.no(f"vLLM calls its version {target.version!r}; the patch is for {patch.versions}")
    if SpecifierSet(patch.versions).contains(version, prereleases=True):
        return None
    return Finding.no(f"vLLM is {version}; the patch is for {patch.versions}")


def _precondition(patch: Patch, code: Code) -> Finding:
    try:
        return patch.precondition(code)
    except (CodeNotFoundError, SyntaxError) as error:
        return Finding.no(str(error))


def _refusal(refused: list[Outcome], target: Target) -> str:
    lines = [f"vLLM {target.version} ({target.platform}) is not the code these patches were made for:"]
    for outcome in refused:
        lines.append(f"  {outcome.patch.name}: {outcome.why}")
        lines.append(f"    needed because: {outcome.patch.reason}")
    names = ",".join(outcome.patch.name for outcome in refused)
    lines.append(
        f"  next: install a vLLM that the patches are for (`glmspark patches` lists them), or set "
        f"{OPTIONAL_VARIABLE}={names} to start without."
    )
    return "\n".join(lines)
