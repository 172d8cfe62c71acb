"""How one node comes by its files: what lies there is used after verification, the rest is taken."""

from __future__ import annotations

import contextlib
import glob
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .digest import root
from .manifest import LAST, noted_digests
from .parts import Part, Record, chunks_inside, cut, damaged, is_kept, origin, record_of
from .pull import Hub, Peer, Text
from .say import say
from .serve import Pace
from .store import File, TransferError


class Taking:
    """Brings files of one model to their place. known: the hashes kept there by an earlier transfer. keep: to
    be called when a part has come: only its hashes tell what it is a part of."""

    def __init__(
        self, spec: dict[str, Any], directory: Path, known: Record, keep: Callable[[], None]
    ) -> None:
        self.spec, self.directory, self.known, self._keep_hashes = spec, directory, known, keep
        self.upstreams: dict[str, str] = {}
        self.peers: list[Peer] = []
        self._own = threading.local()
        self.reused = 0
        self._pace = Pace(spec.get("rate"))
        self._locks: dict[str, threading.Lock] = {}
        # Syncing a large file takes seconds, in which the next one may come.
        self._finisher = ThreadPoolExecutor(1)
        self._finishing: list[Future[None]] = []

    def take(self, file: File, entry: dict[str, Any]) -> None:
        """Have a file at its place, or on its way there: `settle` waits for that. Raises TransferError, and
        OSError of the disk."""
        source = self._source(entry)
        if file.name == LAST:
            self.settle()
            if file.other.exists() and not file.path.exists():
                file.other.rename(file.path)
        record = record_of(self.known, file.path, file.size)
        if isinstance(source, Text):
            if file.path.exists() and source.is_in(file.path):
                file.adopt(source.digests(file))
                say("have", name=file.name)
                return
        elif record is not None:
            if self._same_part(file, record, source, entry.get("identity")):
                return
        elif file.part is not None and not file.part.spans:
            return  # nothing of it is kept here: it comes when another node asks for it
        elif self._there(file, source):
            return
        self.bring(file, entry)

    def bring(self, file: File, entry: dict[str, Any]) -> None:
        """Take all of a file that is wanted, unless that has been done already; as `take`."""
        with self._locks.setdefault(file.name, threading.Lock()):
            if not file.proven:
                self._bring(file, entry)

    def settle(self) -> None:
        """Wait until all that came is at its place. Raises OSError of the disk."""
        for one in self._finishing:
            one.result()

    def _bring(self, file: File, entry: dict[str, Any]) -> None:
        source, identity = self._source(entry), entry.get("identity")
        if isinstance(source, Peer) and file.expected is None and file.journal.exists():
            # Begun by an earlier transfer, maybe of another model with a file of that name and size.
            file.expected = source.digests(file)
        file.begin()
        record = record_of(self.known, file.path, file.size)
        if record is not None and self._is_of(file, record, source, identity):
            self._from_part(file, record)
        self.reused += file.verified
        source.fetch(file)
        if isinstance(source, Hub) and not source.check(file):
            file.journal.unlink(missing_ok=True)
            raise TransferError(
                f"{file.name} is not what the hub says it is: its hash is another",
                step="verify the download",
                advice="fetch again; if it comes so again, the hub's own copy is damaged",
            )
        of = None
        if file.part is not None:
            if isinstance(source, Peer):
                self._compare(file, source)
            of = origin(file.part, file.size, self._root(file), identity)
        file.prove()
        if not file.settled and (file.part is None or file.part.spans):
            self._open_up(file)
        self._finishing.append(self._finisher.submit(self._finish, file, of))

    def _open_up(self, file: File) -> None:
        """A directory that gets another file is no model until the last one is there again: what is broken
        off now may be of two revisions, or of two layouts."""
        last = self.directory / LAST
        if file.name != LAST and any(entry["name"] == LAST for entry in self.spec["files"]):
            with contextlib.suppress(FileNotFoundError):
                last.rename(last.with_name(f".{LAST}.other"))

    def _finish(self, file: File, of: Record | None) -> None:
        if file.part is None or of is None:
            file.finish()
        elif not file.settled:
            aside = file.path.with_name(f".{file.name}.cut")
            digests = cut(file.handle, aside, file.part, file.algorithm) if file.part.spans else []
            record = {"size": file.part.size, "digests": b"".join(digests).hex(), "of": of}
            file.settle(aside, record)
            self._keep_hashes()
        say("have", name=file.name)

    def _source(self, entry: dict[str, Any]) -> Peer | Hub | Text:
        said = entry["from"]
        if isinstance(said, dict) and "text" in said:
            return Text(said["text"])
        if isinstance(said, dict):
            return Hub(
                said["url"],
                self.spec.get("headers") or {},
                sha256=said.get("sha256"),
                blob=said.get("blob"),
                pace=self._pace,
            )
        # A connection has one reader: each thread has its own.
        mine: dict[str, Peer] = self._own.__dict__.setdefault("peers", {})
        if said not in mine:
            mine[said] = Peer(said, lambda: self.upstreams.get(said), self.spec["key"])
            self.peers.append(mine[said])
        return mine[said]

    # -- what is there already: whole ----------------------------------------------------------------------

    def _there(self, file: File, source: Peer | Hub | Text) -> bool:
        if file.path.exists() and self._keep(file, file.path, source):
            return True
        if file.path.is_symlink() and not file.path.exists():
            file.path.unlink()  # it leads nowhere
        return any(self._link(file, path, source) for path in self.elsewhere(file))

    def _keep(self, file: File, path: Path, source: Peer | Hub | Text) -> bool:
        """Use a file that lies at its place, if it is whole; what is right of it stays in any case."""
        mine = file.hash_existing(path)
        if mine is None:
            if path.is_symlink():
                path.unlink()
            else:  # of another size: it goes when the right one has come
                path.rename(file.other)
            return False
        if isinstance(source, Hub):
            if source.check(at(file, path)):
                return self._adopt(file, mine)
            noted = noted_digests(self.known, file.name, file.size)
            if noted is None or noted == mine or path.is_symlink():
                path.unlink()  # another revision's, or nothing says what of it is right
            else:
                file.take_over(mine, noted)
            return False
        wanted = source.digests(file)
        if mine == wanted:
            return self._adopt(file, mine)
        file.expected = wanted
        file.take_over(mine, wanted)
        return False

    def _link(self, file: File, path: Path, source: Peer | Hub | Text) -> bool:
        """Use a file of another layout where it lies, by a link, if it is whole."""
        mine = file.hash_existing(path)
        if mine is None:
            return False
        whole = source.check(at(file, path)) if isinstance(source, Hub) else mine == source.digests(file)
        if not whole:
            return False
        file.path.symlink_to(path.resolve())
        return self._adopt(file, mine)

    def _adopt(self, file: File, digests: list[bytes]) -> bool:
        file.adopt(digests)
        self.reused += file.size
        say("have", name=file.name)
        return True

    def elsewhere(self, file: File) -> list[Path]:
        """Files of that name and size in the known layouts: HF hub caches, and directories named."""
        found = []
        for pattern in self.spec.get("elsewhere", ()):
            for directory in sorted(glob.glob(os.path.expanduser(pattern))):  # noqa: PTH111, PTH207
                path = Path(directory) / file.name
                with contextlib.suppress(OSError):
                    if path.stat().st_size == file.size and path.resolve() != file.path.resolve():
                        found.append(path)
        return found

    # -- what is there already: a part ---------------------------------------------------------------------

    def _same_part(self, file: File, record: Record, source: Peer | Hub | Text, identity: str | None) -> bool:
        """Use the part that lies there, if it is whole and just the one that is wanted."""
        if file.part is None or not is_kept(record, file.path, file.part):
            return False
        if not self._is_of(file, record, source, identity):
            return False
        if damaged(record, file.path, file.algorithm):
            return False
        file.settle(None, record)
        self.reused += file.verified
        say("have", name=file.name)
        return True

    def _is_of(self, file: File, record: Record, source: Peer | Hub | Text, identity: str | None) -> bool:
        """Whether a part is of the file that the other side has."""
        of = record["of"]
        if identity is not None and of.get("identity") == identity:
            return True
        if not isinstance(source, Peer):
            return False
        if file.expected is None:
            file.expected = source.digests(file)
        return bool(of.get("root") == root(file.algorithm, file.size, file.expected).hex())

    @staticmethod
    def _from_part(file: File, record: Record) -> None:
        """Put what a part has of the original's chunks to where they belong."""
        wrong = damaged(record, file.path, file.algorithm)
        missing = set(file.missing())
        with file.path.open("rb") as opened:
            for index, where, count in chunks_inside(record, wrong):
                if index in missing:
                    file.reuse(index, os.pread(opened.fileno(), count, where))

    @staticmethod
    def _compare(file: File, source: Peer) -> None:
        """Know all of the original's hashes, and that those of what came are among them."""
        if file.expected is None:
            file.expected = source.digests(file)
        if any(one is not None and one != file.expected[i] for i, one in enumerate(file.digests)):
            raise TransferError(
                f"{file.name} changed on {source.name} while it was passed on",
                step="verify what came",
                advice="fetch again when nobody writes into it",
            )

    @staticmethod
    def _root(file: File) -> bytes:
        return root(file.algorithm, file.size, file.expected or file.all_digests())


def at(file: File, path: Path) -> File:
    """The same file, as it lies elsewhere."""
    other = File(path.parent, path.name, file.size, file.algorithm, None)
    other.complete = True
    return other


def part_of(entry: dict[str, Any]) -> Part | None:
    """What is kept of an entry's file; None for all of it."""
    said = entry.get("part")
    return None if said is None else Part(said["header"], said["spans"])
