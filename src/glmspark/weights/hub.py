"""A repository on the Hugging Face hub, read in pieces by range requests: nothing is downloaded whole."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from glmspark.models.errors import CheckpointError
from glmspark.models.files import Entry, Span

__all__ = ["HubFile", "HubFiles", "parse_hub"]

_REPOSITORY = re.compile(r"([\w-][\w.-]{0,95}/[\w-][\w.-]{0,95})(?:@(\w[\w./-]{0,254}))?", re.ASCII)
_GAP = 1 << 20
"""Bytes read in vain that cost less than another request."""
_LARGEST = 1 << 44
"""Bytes of a file that anybody could store; a hub that states more is not believed."""
_TRIES = 4
_PATIENCE_S = 30.0
_TIMEOUT = httpx.Timeout(_PATIENCE_S, read=60.0)


def parse_hub(text: str) -> tuple[str, str]:
    """Repository and revision of org/name@revision; the revision is main where none is given.

    Raises CheckpointError for anything else.
    """
    match = _REPOSITORY.fullmatch(text)
    if match is None or ".." in text:
        raise CheckpointError(
            f"{text!r} names no repository", step="find the checkpoint", next="write hf:org/name@revision"
        )
    return match[1], match[2] or "main"


@dataclass(frozen=True)
class HubFile:
    """sha256: of the content, as the hub has it for large files; None for small ones. blob: git's hash."""

    size: int
    sha256: str | None
    blob: str | None = None


class HubFiles:
    """The files of one revision. endpoint: another hub's address, by default $HF_ENDPOINT or the public one.

    Raises CheckpointError, naming the repository, where it cannot be reached or is not for this user.
    """

    def __init__(self, repository: str, revision: str = "main", *, endpoint: str | None = None) -> None:
        from huggingface_hub import HfApi, errors, get_token

        self.repository = repository
        self.where = f"hf:{repository}@{revision}"
        self.requests = 0
        self.received = 0
        self._endpoint = endpoint
        self._lock = threading.Lock()
        token = get_token()
        try:
            info = HfApi(endpoint=endpoint).model_info(
                repository, revision=revision, files_metadata=True, timeout=_PATIENCE_S
            )
        except errors.HfHubHTTPError as error:
            raise CheckpointError(
                f"cannot look at {self.where}: {_first_line(error)}",
                step="ask the hub",
                next="check name and revision; for a gated or private repository run `hf auth login`",
            ) from None
        # Where no answer came, huggingface_hub lets its HTTP client's own errors through. Which client it is
        # depends on its version (httpx or httpx2): the base that it names is the right one.
        except (errors.HTTPError, OSError, ValueError) as error:  # type: ignore[attr-defined]
            raise CheckpointError(
                f"cannot look at {self.where}: {_first_line(error)}",
                step="ask the hub",
                next="does this machine reach the hub? HF_ENDPOINT names another, HTTPS_PROXY a proxy",
            ) from None
        self.commit = str(info.sha or revision)
        self.files = {
            one.rfilename: HubFile(
                self._size(one.rfilename, one.size),
                getattr(one.lfs, "sha256", None) if one.lfs else None,
                one.blob_id,
            )
            for one in info.siblings or ()
        }
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(timeout=_TIMEOUT, follow_redirects=True, headers=self.headers)

    def _size(self, name: str, size: object) -> int:
        """A file's size. Raises CheckpointError for what is none: a file would be left out, or never end."""
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= _LARGEST:
            raise CheckpointError(
                f"cannot use what the hub says of {self.where}: {name[:200]!r} has the size {str(size)[:40]}",
                step="ask the hub",
                next="ask another hub: HF_ENDPOINT names one",
            )
        return size

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def entries(self) -> Mapping[str, Entry]:
        """The files at the top of the repository."""
        return {name: Entry(file.size) for name, file in self.files.items() if "/" not in name}

    def url(self, name: str) -> str:
        """Where a file of this revision lies."""
        from huggingface_hub import hf_hub_url

        return str(hf_hub_url(self.repository, name, revision=self.commit, endpoint=self._endpoint))

    def read(self, name: str, spans: Sequence[Span]) -> list[bytes]:
        """These bytes of a file, in as few requests as serve."""
        order = sorted(range(len(spans)), key=lambda i: spans[i])
        found: list[bytes] = [b""] * len(spans)
        group: list[int] = []
        for i in [*order, None]:
            if group and (i is None or spans[i][0] - max(spans[j][1] for j in group[-1:]) > _GAP):
                begin, end = spans[group[0]][0], max(spans[j][1] for j in group)
                data = self._get(name, begin, end)
                for j in group:
                    found[j] = data[spans[j][0] - begin : spans[j][1] - begin]
                group = []
            if i is not None:
                group.append(i)
        return found

    def _get(self, name: str, begin: int, end: int) -> bytes:
        if begin >= end:
            return b""
        problem = ""
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(min(2.0**attempt, 10.0) / 4)
            try:
                return self._once(name, begin, end)
            except httpx.HTTPStatusError as error:
                problem = f"the hub answers {error.response.status_code}"
                if error.response.status_code in (401, 403, 404, 416):
                    break
            except httpx.HTTPError as error:
                problem = str(error) or type(error).__name__
        raise CheckpointError(
            f"cannot read {name} of {self.where}: {problem}",
            step="read by range requests",
            next="try again; for a gated or private repository run `hf auth login`",
        )

    def _once(self, name: str, begin: int, end: int) -> bytes:
        headers = {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        whole = begin == 0 and end == self.files[name].size
        with self._client.stream("GET", self.url(name), headers=headers) as answer:
            answer.raise_for_status()
            if answer.status_code != 206 and not whole:
                # A server that ignores ranges would send the whole file: hundreds of gigabytes.
                raise CheckpointError(
                    f"the server of {self.where} sends no ranges",
                    step="read by range requests",
                    next="fetch the repository and inspect the directory",
                )
            data = bytearray()
            for piece in answer.iter_bytes():
                data += piece
                if len(data) > end - begin:
                    break
        with self._lock:
            self.requests += 1
            self.received += len(data)
        if len(data) != end - begin:
            raise httpx.ReadError(f"{len(data)} of {end - begin} bytes came")
        return bytes(data)

    def to_json(self) -> dict[str, Any]:
        """What was asked of the hub: commit, requests and bytes received."""
        return {"commit": self.commit, "requests": self.requests, "received": self.received}


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
