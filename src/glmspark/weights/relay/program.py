"""One node's part of a transfer, from the first line on standard input to its end.

Standard input: a JSON line with the specification, then lines {"upstreams": {node: "IP:PORT"}} whenever a
node has started (anew), and {"stop": true}. Its end stops everything: no daemon stays behind. Standard
output: JSON lines, see `_say`.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import re
import shutil
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .digest import ALGORITHMS, CHUNK, SIZE, chunks, digest
from .pull import Hub, Peer
from .serve import Pace, Server
from .store import File, TransferError
from .wire import listen

MANIFEST = ".glmspark-weights.json"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,250}", re.ASCII)
_BEAT = 0.5


class Transfer:
    """The files of one model on one node."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.directory = Path(os.path.expanduser(spec["directory"]))  # noqa: PTH111 - keeps what is no ~
        self.algorithm: str = spec["algorithm"]
        self.upstreams: dict[str, str] = {}
        self.files: dict[str, File] = {}
        self.peers: dict[str, Peer] = {}
        self.pace = Pace(spec.get("rate"))
        self.reused = 0
        self.hashed = 0
        self.failed = False
        self.done = threading.Event()
        self._writing = threading.Lock()
        # Syncing a large file takes seconds, in which the next one may come.
        self._finisher = ThreadPoolExecutor(1)
        self._finishing: list[Future[None]] = []

    def run(self) -> None:
        """Offer, fetch, and say how it goes."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.directory / ".glmspark-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TransferError(
                f"another transfer writes into {self.directory}",
                advice="wait until it has ended",
            ) from None
        known = read_manifest(self.directory, self.algorithm)
        for entry in self.spec["files"]:
            name, size = entry["name"], entry["size"]
            if not _NAME.fullmatch(name):
                raise TransferError(f"{name!r} is no plain file name")
            self.files[name] = File(self.directory, name, size, self.algorithm, None)
            if entry["from"] is None:
                self.files[name].expected = known_digests(known, self.directory / name)
                self.files[name].offer()
        server = None
        if self.spec.get("listen"):
            listener = listen(self.spec["listen"])
            server = Server(listener, self.files, self.spec["key"], self.spec.get("rate"))
            server.start()
            host, port = listener.getsockname()[:2]
            self._say("listening", address=f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        else:
            self._say("listening", address=None)
        threading.Thread(target=self._tell, args=(server,), daemon=True).start()
        threading.Thread(target=self._fetch_all, args=(known,), daemon=True).start()
        for line in sys.stdin:
            said = json.loads(line)
            self.upstreams.update(said.get("upstreams", {}))
            if said.get("stop"):
                break
        self._progress(server)
        if not self.failed and any(entry["from"] is None for entry in self.spec["files"]):
            self._write_manifest(known)  # a source knows its hashes when all has gone out

    # -- fetching ------------------------------------------------------------------------------------------

    def _fetch_all(self, known: dict[str, Any]) -> None:
        try:
            self._check_room()
            for entry in self.spec["files"]:
                if entry["from"] is not None:
                    self._fetch(self.files[entry["name"]], entry)
            for one in self._finishing:
                one.result()
            self._write_manifest(known)
        except TransferError as error:
            self._fail(str(error), error.step, error.advice)
        except OSError as error:
            advice = (
                "make room there: what has come is kept, and fetching again goes on"
                if error.errno == 28
                else ""
            )
            self._fail(f"{error.filename or self.directory}: {error.strerror}", "write the weights", advice)
        except Exception as error:  # noqa: BLE001 - else nobody would ever hear of this thread again
            self._fail(f"the relay itself failed: {error!r}", "spread the weights", "")
        else:
            self.done.set()
            self._say("done", reused=self.reused, **self._numbers())

    def _fail(self, reason: str, step: str, advice: str) -> None:
        self.failed = True
        for file in self.files.values():
            if not file.complete:
                file.fail(reason)
        self._say("failed", error=reason, step=step, next=advice)

    def _check_room(self) -> None:
        wanted = 0
        for entry in self.spec["files"]:
            file = self.files[entry["name"]]
            if entry["from"] is None or file.path.exists() or self._elsewhere(file):
                continue
            have = file.part.stat().st_blocks * 512 if file.part.exists() else 0
            wanted += max(file.size - have, 0)
        free = shutil.disk_usage(self.directory).free
        if wanted > free:
            raise TransferError(
                f"{self.directory} has {free} bytes free, {wanted} are needed",
                step="look for room",
                advice="make room there, or set paths.models in cluster.yaml to a larger disk",
            )

    def _fetch(self, file: File, entry: dict[str, Any]) -> None:
        source = self._source(entry)
        if file.path.exists() and self._keep(file, file.path, source):
            return
        if file.path.is_symlink() and not file.path.exists():
            file.path.unlink()  # it leads nowhere
        for path in self._elsewhere(file):
            if self._link(file, path, source):
                return
        if isinstance(source, Peer) and file.expected is None and file.journal.exists():
            # Begun by an earlier transfer, maybe of another model with a file of that name and size.
            file.expected = source.digests(file)
        file.begin()
        self.reused += file.verified
        source.fetch(file)
        if isinstance(source, Hub) and not source.check(file):
            file.journal.unlink(missing_ok=True)
            raise TransferError(
                f"{file.name} is not what the hub says it is: its hash is another",
                step="verify the download",
                advice="fetch again; if it comes so again, the hub's own copy is damaged",
            )
        file.prove()
        self._finishing.append(self._finisher.submit(file.finish))

    def _source(self, entry: dict[str, Any]) -> Peer | Hub:
        said = entry["from"]
        if isinstance(said, dict):
            return Hub(
                said["url"],
                self.spec.get("headers") or {},
                sha256=said.get("sha256"),
                blob=said.get("blob"),
                pace=self.pace,
            )
        if said not in self.peers:
            self.peers[said] = Peer(said, lambda: self.upstreams.get(said), self.spec["key"])
        return self.peers[said]

    def _keep(self, file: File, path: Path, source: Peer | Hub) -> bool:
        """Use a file that lies at its place, if it is whole; what is right of it stays in any case."""
        mine = file.hash_existing(path)
        if mine is None:
            if path.is_symlink():
                path.unlink()
            else:
                path.rename(path.with_name(f".{file.name}.other"))
            return False
        if isinstance(source, Hub):
            if source.check(_at(file, path)):
                file.adopt(mine)
                self.reused += file.size
                return True
            path.unlink()
            return False
        wanted = source.digests(file)
        if mine == wanted:
            file.adopt(mine)
            self.reused += file.size
            return True
        file.expected = wanted
        file.take_over(mine, wanted)
        return False

    def _link(self, file: File, path: Path, source: Peer | Hub) -> bool:
        """Use a file of another layout where it lies, by a link, if it is whole."""
        mine = file.hash_existing(path)
        if mine is None:
            return False
        whole = source.check(_at(file, path)) if isinstance(source, Hub) else mine == source.digests(file)
        if not whole:
            return False
        file.path.symlink_to(path.resolve())
        file.adopt(mine)
        self.reused += file.size
        return True

    def _elsewhere(self, file: File) -> list[Path]:
        """Files of that name and size in the known layouts: HF hub caches, and directories named."""
        found = []
        for pattern in self.spec.get("elsewhere", ()):
            for directory in sorted(glob.glob(os.path.expanduser(pattern))):  # noqa: PTH111, PTH207
                path = Path(directory) / file.name
                with contextlib.suppress(OSError):
                    if path.stat().st_size == file.size and path.resolve() != file.path.resolve():
                        found.append(path)
        return found

    def _write_manifest(self, known: dict[str, Any]) -> None:
        with self._writing:
            files = dict(known.get("files", {}))
            for name, file in self.files.items():
                files.pop(name, None)
                if self._cheap(file):
                    files[name] = {
                        "size": file.size,
                        "mtime_ns": file.path.stat().st_mtime_ns,
                        "digests": b"".join(file.all_digests()).hex(),
                    }
            write_manifest(self.directory, self.algorithm, files)

    def _cheap(self, file: File) -> bool:
        """Whether all hashes are known: a source that nobody asked for a file need not read it."""
        return all(one is not None for one in file.digests)

    # -- telling -------------------------------------------------------------------------------------------

    def _numbers(self) -> dict[str, int]:
        mine = [self.files[entry["name"]] for entry in self.spec["files"] if entry["from"] is not None]
        return {
            "verified": sum(file.verified for file in mine),
            "total": sum(file.size for file in mine),
            "received": sum(file.received for file in mine),
            "wrong": sum(peer.wrong for peer in self.peers.values()),
            "broken": sum(peer.broken for peer in self.peers.values()),
        }

    def _tell(self, server: Server | None) -> None:
        while True:
            time.sleep(_BEAT)
            self._progress(server)

    def _progress(self, server: Server | None) -> None:
        used = os.times()
        self._say(
            "progress",
            sent=server.sent if server else 0,
            refused=server.refused if server else 0,
            cpu=round(used.user + used.system, 3),
            **self._numbers(),
        )

    def _say(self, kind: str, **values: Any) -> None:
        say(kind, **values)


_SAYING = threading.Lock()


def say(kind: str, **values: Any) -> None:
    """One JSON line: listening, progress, done, failed, file."""
    with _SAYING, contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps({"t": kind, **values}) + "\n")
        sys.stdout.flush()


def _at(file: File, path: Path) -> File:
    """The same file, as it lies elsewhere."""
    other = File(path.parent, path.name, file.size, file.algorithm, None)
    other.complete = True
    return other


def read_manifest(directory: Path, algorithm: str) -> dict[str, Any]:
    """The hashes kept beside the weights, empty where there are none of this algorithm."""
    try:
        found = json.loads((directory / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    good = isinstance(found, dict) and found.get("algorithm") == algorithm and found.get("chunk") == CHUNK
    return found if good and isinstance(found.get("files"), dict) else {}


def known_digests(manifest: dict[str, Any], path: Path) -> list[bytes] | None:
    """A file's chunk hashes, if it has not been touched since they were taken."""
    entry = manifest.get("files", {}).get(path.name)
    if not isinstance(entry, dict):
        return None
    status = path.stat()
    if (entry.get("size"), entry.get("mtime_ns")) != (status.st_size, status.st_mtime_ns):
        return None
    raw = bytes.fromhex(entry["digests"])
    return [raw[i : i + 32] for i in range(0, len(raw), 32)]


def write_manifest(directory: Path, algorithm: str, files: dict[str, Any]) -> None:
    """Replace the manifest, whole or not at all."""
    aside = directory / f"{MANIFEST}.new"
    with aside.open("w") as file:
        json.dump({"algorithm": algorithm, "chunk": CHUNK, "files": files}, file)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(directory / MANIFEST)


def verify(directory: Path) -> bool:
    """Hash every file that the manifest knows, and say of each whether it is what it was; True if all are."""
    try:
        found = json.loads((directory / MANIFEST).read_bytes())
        algorithm = found["algorithm"]
        files = {
            name: (entry["size"], bytes.fromhex(entry["digests"])) for name, entry in found["files"].items()
        }
        if not all(
            _NAME.fullmatch(name) and len(raw) == chunks(n) * SIZE for name, (n, raw) in files.items()
        ):
            raise ValueError("damaged")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        say("failed", error=f"{directory} has no whole {MANIFEST}: not fetched by glmspark?", step="verify",
            next="`glmspark fetch` takes what lies there, and verifies it")  # fmt: skip
        return False
    if algorithm not in ALGORITHMS:
        say("failed", error=f"this Python has no {algorithm}", step="verify", next="install blake3 there")
        return False
    good = True
    total = sum(size for size, _ in files.values())
    done = 0
    told = time.monotonic()
    buffer = bytearray(CHUNK)
    for name, (size, raw) in sorted(files.items()):
        wrong: list[int] = []
        problem = None
        try:
            with (directory / name).open("rb") as file:
                if os.fstat(file.fileno()).st_size != size:
                    problem = f"has {os.fstat(file.fileno()).st_size} bytes, not {size}"
                for index in range(len(raw) // 32 if problem is None else 0):
                    count = file.readinto(buffer)
                    if digest(algorithm, memoryview(buffer)[:count]) != raw[index * 32 : index * 32 + 32]:
                        wrong.append(index)
                    done += count
                    if time.monotonic() - told > _BEAT:
                        told = time.monotonic()
                        say("progress", verified=done, total=total)
        except OSError as error:
            problem = error.strerror or str(error)
        if wrong:
            problem = (
                f"{len(wrong)} of {len(raw) // 32} chunks are damaged, the first at byte {wrong[0] * CHUNK}"
            )
        good = good and problem is None
        say("file", name=name, ok=problem is None, problem=problem)
    say("done", verified=done, total=total, files=len(files))
    return good


def main(words: list[str]) -> int:
    """`run`: a transfer. `verify DIRECTORY`. `algorithms`: which hashes this Python has."""
    try:
        if words[:1] == ["algorithms"]:
            say("algorithms", names=list(ALGORITHMS))
            return 0
        if words[:1] == ["verify"] and len(words) == 2:
            return 0 if verify(Path(os.path.expanduser(words[1]))) else 1  # noqa: PTH111
        if words != ["run"]:
            sys.stderr.write("use: run | verify DIRECTORY | algorithms\n")
            return 2
        transfer = Transfer(json.loads(sys.stdin.readline()))
        transfer.run()
    except TransferError as error:
        say("failed", error=str(error), step=error.step, next=error.advice)
        return 1
    except OSError as error:
        say("failed", error=f"{error.filename or ''}: {error.strerror}", step="spread the weights", next="")
        return 1
    return int(transfer.failed)
