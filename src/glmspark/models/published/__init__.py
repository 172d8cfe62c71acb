"""Published checkpoints: what they weigh, class by class, without a copy of them at hand.

A plan reads a checkpoint's own headers where it lies here; for one that is yet to be fetched this is what is
known of it. `outline_of` (models/outline.py) and this agree on a checkpoint that both can see; a test holds
them to it.
"""

from glmspark.models.published.checkpoints import CHECKPOINTS, DRAFTERS, Drafter, find, find_drafter
from glmspark.models.published.configs import FLASH, GLM_5_2, GLM_5_2_REAP
from glmspark.models.published.formats import BITS, Formats

__all__ = [
    "BITS",
    "CHECKPOINTS",
    "DRAFTERS",
    "FLASH",
    "GLM_5_2",
    "GLM_5_2_REAP",
    "Drafter",
    "Formats",
    "find",
    "find_drafter",
]
