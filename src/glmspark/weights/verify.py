"""Weights hashed again where they lie, on all nodes at once; and which models lie there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import asyncssh

from glmspark.models.inspection.content import INDEX
from glmspark.nodes.facts import Fact
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.node import LocalNode, Node
from glmspark.nodes.ssh import SshNode
from glmspark.nodes.survey import survey
from glmspark.nodes.transport import NodeError
from glmspark.weights.archive import heard
from glmspark.weights.archive import place as place_program

__all__ = ["Checked", "StoredModel", "list_models", "remove_model", "verify"]

_SCAN = """\
import json, os, sys
root = os.path.expanduser(sys.argv[1])
found = []
for name in sorted(os.listdir(root)) if os.path.isdir(root) else []:
    path = os.path.join(root, name)
    # What a removal that was broken off has left is shown too: it takes room, and can be removed.
    if (name.startswith(".") and not name.startswith(".removing-")) or not os.path.isdir(path):
        continue
    own = linked = files = 0
    try:
        there = os.listdir(path)
    except OSError:
        there = []
    partial = "config.json" not in there or name.startswith(".")
    begun = name.startswith(".") or any(one.endswith((".safetensors", ".glmspark-lock")) for one in there)
    into = set()
    for folder, _, names in os.walk(path):
        for one in names:
            at = os.path.join(folder, one)
            begun = begun or one.endswith(".part")
            partial = partial or one.endswith(".part")
            try:
                size = os.stat(at).st_size
            except OSError:
                continue
            files += 1
            if os.path.islink(at):
                linked += size
                target = os.path.relpath(os.path.realpath(at), os.path.realpath(root)).split(os.sep)[0]
                if target not in ("..", name):
                    into.add(target)
            else:
                own += os.stat(at).st_blocks * 512
    known = os.path.exists(os.path.join(path, ".glmspark-weights.json"))
    part = None
    try:
        with open(os.path.join(path, "model.safetensors.index.json")) as file:
            said = json.load(file)["metadata"]["glmspark"]
        part = [int(said[key]) for key in ("rank", "tp", "pp")]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    if begun or "config.json" in there:
        found.append([name, files, own, linked, partial, known, sorted(into), part])
print(json.dumps([root, found]))
"""

# Whoever serves a model has its directory among its arguments: a deployment of this machine alone, one in a
# container and one that is none of ours as well. This program itself has it from its input.
_USERS = r"""import os, re, sys
path = os.fsdecode(sys.stdin.buffer.read())
names = "|".join(re.escape(one) for one in {path, os.path.realpath(path)})
used = re.compile(r"(?<![\w./@+-])(?:%s)(?![\w@+-]|\.\w)" % names)
for entry in sorted(os.listdir("/proc")):
    if not entry.isdecimal():
        continue
    try:
        with open("/proc/" + entry + "/cmdline", "rb") as file:
            said = os.fsdecode(file.read()).replace("\0", " ").strip()
    except OSError:
        continue
    if used.search(said):
        print(entry, ascii(said[:80])[1:-1])
"""


@dataclass(frozen=True)
class StoredModel:
    """A model's directory on a node. nbytes: of disk; linked: bytes of files it links to. partial: a transfer
    into it has not ended, or its removal. hashed: whether its hashes are kept beside it. into: other models'
    directories that its files lead into by links. part: where the directory holds what one rank needs: rank,
    TP, PP."""

    path: str
    files: int
    nbytes: int
    linked: int
    partial: bool
    hashed: bool
    into: Sequence[str] = ()
    part: Sequence[int] | None = None


@dataclass
class Checked:
    """One node's verification. files: that were hashed; unhashed: others of the model, of which no hashes are
    kept. originals: what each file is, or is a part of, by its hash. problems: by file. error: why it could
    not be done, with the way out."""

    node: str
    verified: int = 0
    total: int = 0
    files: int = 0
    unhashed: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    error: NodeError | None = None
    done: bool = False
    originals: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def good(self) -> bool:
        """Whether every file is what it was when it came."""
        return self.done and not self.problems and self.error is None


async def verify(
    fleet: Fleet,
    place: str,
    *,
    pythons: tuple[str, ...] = (),
    told: Callable[[Mapping[str, Checked]], None] = lambda _: None,
) -> dict[str, Checked]:
    """Hash a model's files on every node, all at once, against the hashes kept beside them."""
    found = {name: Checked(name) for name in (*fleet.nodes, *fleet.lost)}
    for name, error in fleet.lost.items():
        found[name].error = error

    async def one(node: Node) -> None:
        mine = found[node.host]
        program = await place_program(node, pythons)
        assert isinstance(node, SshNode | LocalNode)  # noqa: S101 - there are no others
        process = await node.open(program.argv("verify", place))
        try:
            while line := await process.stdout.readline():
                _hear(mine, heard(line))
                told(found)
            await process.wait_closed()
        except (asyncssh.Error, OSError, ValueError) as error:
            raise NodeError(str(error) or "the connection broke", host=node.host, step="verify") from error
        finally:
            process.close()
        if not mine.done and mine.error is None:
            raise NodeError("the relay ended before it was done", host=node.host, step="verify")

    for name, result in (await fleet.each(one)).items():
        if isinstance(result, NodeError):
            found[name].error = result
    _compare(found)
    return found


def _compare(found: Mapping[str, Checked]) -> None:
    """Each file may be what came, and yet of two revisions on two nodes. An index is each node's own."""
    said: dict[tuple[str, str], tuple[str, str]] = {}
    for node, one in found.items():
        for name, original in one.originals.items():
            first, other = said.setdefault((name, original.partition(" ")[0]), (node, original))
            if other != original and name != INDEX:
                one.problems.setdefault(name, f"is whole, but not of the file that {first} has")


def _hear(mine: Checked, said: Mapping[str, object]) -> None:
    match said.get("t"):
        case "progress" | "done":
            mine.verified, mine.total = int(str(said["verified"])), int(str(said["total"]))
            if said["t"] == "done":
                mine.files, mine.done = int(str(said["files"])), True
                mine.unhashed = int(str(said["unhashed"]))
        case "file" if not said["ok"]:
            mine.problems[str(said["name"])] = str(said["problem"])
        case "file" if said.get("of"):
            mine.originals[str(said["name"])] = str(said["of"])
        case "failed":
            mine.error = NodeError(
                str(said["error"]), host=mine.node, step=str(said["step"]), next=str(said["next"]) or None
            )


def _parse(text: str) -> tuple[str, dict[str, StoredModel]]:
    try:
        root, rows = json.loads(text)
        return str(root), {
            str(name): StoredModel(posixpath.join(root, name), *values) for name, *values in rows
        }
    except TypeError as error:
        raise ValueError(f"not a list of models: {error}") from None


async def list_models(fleet: Fleet, models: str) -> dict[str, dict[str, StoredModel] | NodeError]:
    """The models below cluster.paths.models on every node, by name."""
    fact = Fact(f"models in {models}", ("python3", "-c", _SCAN, models), _parse)

    async def one(node: Node) -> dict[str, StoredModel]:
        facts = await survey(node, [fact], each=120, timeout=130)
        found = facts.get(fact)
        if found is None:
            raise NodeError(
                f"cannot look into {models}: {facts.problem(fact)}", host=node.host, step="list models"
            )
        return found[1]

    return {**await fleet.each(one), **fleet.lost}


async def remove_model(fleet: Fleet, where: Mapping[str, StoredModel]) -> dict[str, NodeError | None]:
    """Remove a model's directory on these nodes; what it links to stays. By node, an error or None.

    Nowhere, if a process on one of them has it among its arguments.
    """

    async def look(node: Node) -> None:
        path = where[node.host].path
        done = await node.must(["python3", "-c", _USERS], f"see who uses {path}", input=os.fsencode(path))
        if users := done.stdout.splitlines():
            raise NodeError(
                f"process {users[0].partition(' ')[0]} uses {path}",
                host=node.host,
                step="remove a model",
                seen="\n".join(users[:5]),
                next="stop it first: `glmspark status` shows deployments",
            )

    async def one(node: Node) -> None:
        path = where[node.host].path
        # Renamed first: whatever happens then, no half model lies under its name.
        aside = posixpath.join(posixpath.dirname(path), f".removing-{posixpath.basename(path)}")
        lock = posixpath.join(path, ".glmspark-lock")
        await node.must(["rm", "-rf", "--", aside], f"remove {aside}", timeout=600)  # left by an earlier one
        await node.must(
            ["flock", "-n", lock, "mv", "-T", "--", path, aside],
            f"remove {path}",
            next="is a transfer into it going on? Wait until it has ended",
        )
        await node.must(["rm", "-rf", "--", aside], f"remove {path}", timeout=600)

    with contextlib.suppress(asyncio.CancelledError):
        looked = await fleet.each(look, names=list(where))
        if any(isinstance(result, NodeError) for result in looked.values()):
            return {name: one if isinstance(one, NodeError) else None for name, one in looked.items()}
        return {
            name: result if isinstance(result, NodeError) else None
            for name, result in (await fleet.each(one, names=list(where))).items()
        }
    raise asyncio.CancelledError
