"""The Docker Engine of a node, its runtimes and its images by id."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from glmspark.nodes.facts import Fact


@dataclass(frozen=True)
class Engine:
    """A Docker Engine. id: differs on every engine. root: where images and containers lie.

    problem: why the client got no answer, '' if it did; then the rest is empty.
    """

    version: str
    id: str
    root: str
    driver: str
    runtimes: tuple[str, ...]
    cdi: bool
    problem: str = ""


@dataclass(frozen=True)
class Image:
    """An image. id: sha256:…, the same on every node that holds the same image. name: repository:tag."""

    id: str
    name: str


def parse_info(text: str) -> Engine:
    """The engine from `docker info --format '{{json .}}'`. Raises ValueError for anything else."""
    data = _object(text)
    errors = data.get("ServerErrors") or []
    return Engine(
        version=str(data.get("ServerVersion") or ""),
        id=str(data.get("ID") or ""),
        root=str(data.get("DockerRootDir") or ""),
        driver=str(data.get("Driver") or ""),
        runtimes=tuple(sorted(data.get("Runtimes") or {})),
        # Where the nvidia hook is replaced by CDI, `--gpus all` works without a runtime of that name.
        cdi=any("nvidia.com/gpu" in str(one) for one in data.get("DiscoveredDevices") or []),
        problem="; ".join(map(str, errors)),
    )


def parse_images(text: str) -> tuple[Image, ...]:
    """Images from `docker image ls --no-trunc --format '{{json .}}'`, one JSON object a line."""
    found = []
    for line in text.splitlines():
        if line.strip():
            data = _object(line)
            name = f"{data.get('Repository')}:{data.get('Tag')}"
            found.append(Image(str(data.get("ID", "")), "" if "<none>" in name else name))
    return tuple(found)


def _object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(f"docker did not print JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError("docker printed JSON of another shape")
    return data


ENGINE = Fact("Docker Engine", ("docker", "info", "--format", "{{json .}}"), parse_info)
IMAGES = Fact("images", ("docker", "image", "ls", "--no-trunc", "--format", "{{json .}}"), parse_images)
