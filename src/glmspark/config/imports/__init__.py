"""Reading what people have from before: settings files and recipes of other tools.

Nothing is run, nothing is expanded by a shell, and what cannot be taken over is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Note:
    """What became of one thing in the old file.

    outcome: kept (as it was), changed (to what `what` says), refused (not taken over, `what` says why).
    name: its key there. line: counted from 1.
    """

    outcome: Literal["kept", "changed", "refused"]
    name: str
    what: str
    line: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {"outcome": self.outcome, "name": self.name, "what": self.what, "line": self.line}
