"""Why a recipe cannot be served as asked."""

from __future__ import annotations

from glmspark.errors import GlmsparkError

__all__ = ["PlanError"]


class PlanError(GlmsparkError):
    """A layout, context or memory demand that cannot work, found before anything is started."""
