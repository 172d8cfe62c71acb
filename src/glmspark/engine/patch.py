"""What a patch is: one change to vLLM, why it is needed, and the precondition that guards it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from glmspark.engine.code import Code

DENSE_VARIABLE = "GLMSPARK_DENSE_ATTENTION"
OPTIONAL_VARIABLE = "GLMSPARK_OPTIONAL_PATCHES"
REQUIRED_VARIABLE = "GLMSPARK_REQUIRED_PATCHES"


class PatchRefusedError(RuntimeError):
    """A patch that is needed here does not fit the vLLM at hand: the launch stops."""


class State(StrEnum):
    """What became of a patch on the vLLM at hand."""

    APPLIED = "applied"
    NOT_NEEDED = "not needed here"
    SUPERSEDED = "superseded upstream"
    REFUSED = "refused"
    SKIPPED = "skipped"  # would be refused, and the recipe marks the patch optional


class Holds(StrEnum):
    """What a precondition found."""

    YES = "holds"
    SUPERSEDED = "not needed any more"
    NO = "fails"


@dataclass(frozen=True)
class Finding:
    """A precondition's verdict and what was seen in the code that led to it."""

    holds: Holds
    seen: str

    @classmethod
    def yes(cls, seen: str) -> Finding:
        """The code is as the patch expects."""
        return cls(Holds.YES, seen)

    @classmethod
    def superseded(cls, seen: str) -> Finding:
        """Upstream has made the patch unnecessary."""
        return cls(Holds.SUPERSEDED, seen)

    @classmethod
    def no(cls, seen: str) -> Finding:
        """The code is not as the patch expects."""
        return cls(Holds.NO, seen)


@dataclass(frozen=True)
class Target:
    """The vLLM at hand: its version, and the platform it runs on.

    `platform` is vLLM's own word ("cpu", "cuda", "rocm", ...). `capability` is the CUDA device's compute
    capability (major, minor), None elsewhere. `dense` tells whether the recipe asks for dense attention.
    """

    version: str
    platform: str
    capability: tuple[int, int] | None = None
    dense: bool = False

    @classmethod
    def at_hand(cls) -> Target:
        """Ask the installed vLLM. Imports `vllm.platforms` (and with it torch), touches no device."""
        from vllm.platforms import current_platform
        from vllm.version import __version__

        capability = None
        name = current_platform.device_type
        if current_platform.is_cuda() and (found := current_platform.get_device_capability()) is not None:
            capability = (found.major, found.minor)
        return cls(str(__version__), name, capability, dense_requested())


def dense_requested() -> bool:
    """Whether the recipe allows dense attention beyond `index_topk`.

    Raises `PatchRefusedError` for anything but 0, 1 or nothing: a typing error must not choose another model.
    """
    value = os.environ.get(DENSE_VARIABLE, "")
    if value not in {"", "0", "1"}:
        raise PatchRefusedError(f"{DENSE_VARIABLE}={value!r}: it takes 0 or 1")
    return value == "1"


@dataclass(frozen=True)
class Patch:
    """One change to vLLM.

    `versions` is a version specifier. `needed` returns None where the target needs the patch, otherwise the
    reason why not. `precondition` looks at the code only. `apply` makes the change in this process; it is
    called at most once per process and only after the precondition held.
    """

    name: str
    title: str
    upstream: str
    reason: str
    link: str
    versions: str
    needed: Callable[[Target], str | None]
    precondition: Callable[[Code], Finding]
    apply: Callable[[], None]


@dataclass(frozen=True)
class Outcome:
    """A patch and what became of it, with the reason."""

    patch: Patch
    state: State
    why: str
