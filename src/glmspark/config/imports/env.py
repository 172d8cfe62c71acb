"""The .env file of shell launchers for Sparks: CLUSTER_NODES, ETH_IF, IB_IF, CONTAINER_* and the like."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from glmspark.config.imports import Note
from glmspark.errors import GlmsparkError

_LINE = re.compile(r"^(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$")
_LIST = re.compile(r"[\s,]+")
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|API_KEY", re.IGNORECASE)
_MASTER = "MASTER_PORT"


@dataclass(frozen=True)
class EnvFile:
    """What a .env file says. hosts: the nodes, the head first. interfaces: those it would use for the fabric.

    hcas: RDMA devices. master_port: of the rendezvous. container: variables for the engine. notes: what
    became of each line.
    """

    hosts: tuple[str, ...]
    interfaces: tuple[str, ...]
    hcas: tuple[str, ...]
    master_port: int | None
    container: dict[str, str]
    notes: tuple[Note, ...]


def parse_env(text: str, path: str = ".env") -> EnvFile:
    """An EnvFile from a file's text. Raises GlmsparkError where it names no nodes.

    Quotes are removed as a shell would; $VARIABLES and `commands` are not expanded but refused.
    """
    values: dict[str, tuple[str, int]] = {}
    notes: list[Note] = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.match(stripped)
        if match is None:
            notes.append(Note("refused", stripped[:40], "not NAME=value", number))
            continue
        name, raw = match[1], match[2].strip()
        value = _value(raw)
        if value is None:
            notes.append(
                Note("refused", name, "a shell would expand or run this: write the value itself", number)
            )
            continue
        if name in values:
            notes.append(Note("changed", name, f"given twice: line {values[name][1]} is dropped", number))
        values[name] = (value, number)

    def items(name: str) -> tuple[str, ...]:
        return tuple(one for one in _LIST.split(values.get(name, ("", 0))[0]) if one)

    local = items("LOCAL_IP")
    hosts = items("CLUSTER_NODES") or (*local, *items("COPY_HOSTS"))
    container: dict[str, str] = {}
    port: int | None = None
    for name, (value, number) in values.items():
        note = _note(name, value, number)
        if name == _MASTER and value.isdecimal() and 0 < int(value) < 65536:
            port = int(value)
        if name.startswith("CONTAINER_") and name != "CONTAINER_NAME" and note.outcome == "kept":
            container[name.removeprefix("CONTAINER_")] = value
        notes.append(note)
    if not hosts:
        raise GlmsparkError(
            f"{path} names no nodes",
            step=f"read {path}",
            seen=", ".join(values) or "no settings",
            next="name them: CLUSTER_NODES=192.168.100.11,192.168.100.12 (the head first)",
        )
    return EnvFile(
        hosts=tuple(dict.fromkeys(hosts)),
        interfaces=items("ETH_IF"),
        hcas=items("IB_IF"),
        master_port=port,
        container=container,
        notes=tuple(sorted(notes, key=lambda note: note.line or 0)),
    )


def _value(raw: str) -> str | None:
    """The value as a shell would read it, None where the shell would do more than unquote."""
    if raw.startswith("'") and raw.endswith("'") and len(raw) > 1 and "'" not in raw[1:-1]:
        return raw[1:-1]
    if "$" in raw or "`" in raw:
        return None
    try:
        words = shlex.split(raw, comments=True)
    except ValueError:
        return None
    return " ".join(words)


def _note(name: str, value: str, line: int) -> Note:
    if name == "CLUSTER_NODES":
        return Note("kept", name, "nodes, the head first", line)
    if name in ("LOCAL_IP", "COPY_HOSTS"):
        return Note("changed", name, "the nodes' own addresses are found by looking", line)
    if name in ("ETH_IF", "IB_IF"):
        return Note(
            "changed", name, "links and RDMA devices are found on each node; compare with the file", line
        )
    if name == "CLUSTER_LINKS":
        return Note("changed", name, "the shape of the fabric is found by looking", line)
    if name == _MASTER:
        if value.isdecimal() and 0 < int(value) < 65536:
            return Note("kept", name, "give it to `glmspark up --master-port`", line)
        return Note("refused", name, f"{value!r} is not a port", line)
    if name == "CONTAINER_NAME":
        return Note("changed", name, "containers are named after the deployment", line)
    if _SECRET.search(name):
        return Note(
            "refused", name, "secrets stay out of files of ours: set it where you start glmspark", line
        )
    if name.startswith("CONTAINER_"):
        return Note(
            "kept", name, f"put {name.removeprefix('CONTAINER_')} under engine.env of the recipe", line
        )
    return Note("refused", name, "not known; glmspark has no use for it", line)
