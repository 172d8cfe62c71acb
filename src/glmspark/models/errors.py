"""What can be wrong with a checkpoint."""

from __future__ import annotations

from glmspark.errors import GlmsparkError

__all__ = ["CheckpointError"]


class CheckpointError(GlmsparkError):
    """A checkpoint that is missing, broken, or of an architecture that is not served here."""
