"""The journal of a node: what was changed there, and what had been there before."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from glmspark.nodes.tuning import PathState

VERSION = 1


@dataclass
class Entry:
    """One change. kind: path, dir, sysctl, service, swap, linger, unit. name: of that, or the user's.

    before, after: for a path PathState; for a setting the numbers; for a service whether it ran; for a unit
    of ours what it writes (after).
    """

    kind: str
    name: str
    before: Any = None
    after: Any = None

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""

        def plain(value: Any) -> Any:
            return value.to_json() if isinstance(value, PathState) else value

        return {
            "kind": self.kind,
            "name": self.name,
            "before": plain(self.before),
            "after": plain(self.after),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Entry:
        """The reverse of to_json. Raises KeyError, TypeError or ValueError for anything else."""
        kind, before, after = str(data["kind"]), data["before"], data["after"]
        if kind == "path":
            before, after = PathState.from_json(before), PathState.from_json(after)
        return cls(kind, str(data["name"]), before, after)


@dataclass
class Journal:
    """All changes of a node, in the order they were made."""

    entries: list[Entry] = field(default_factory=list)

    def find(self, kind: str, name: str) -> Entry | None:
        """The entry of this thing, None if it was never changed."""
        return next((one for one in self.entries if (one.kind, one.name) == (kind, name)), None)

    def note(self, kind: str, name: str, before: Any, after: Any) -> Entry:
        """Enter a change to be made. What was there before the first of several changes is kept."""
        entry = self.find(kind, name)
        if entry is None:
            entry = Entry(kind, name, before, after)
            self.entries.append(entry)
        else:
            entry.after = after
        return entry

    def dump(self) -> bytes:
        """The journal's file."""
        data = {"version": VERSION, "entries": [entry.to_json() for entry in self.entries]}
        return (json.dumps(data, indent=1) + "\n").encode()

    @classmethod
    def load(cls, raw: bytes) -> Journal:
        """The journal in a file's bytes. Raises ValueError for anything else."""
        try:
            data = json.loads(raw)
            if data["version"] != VERSION:
                raise ValueError(f"version {data['version']} of the journal is not known here")
            return cls([Entry.from_json(one) for one in data["entries"]])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a journal of glmspark: {error!r}") from None
