"""Whether weights and image fit where they will lie."""

from __future__ import annotations

from collections.abc import Iterator

from glmspark.config.units import format_size
from glmspark.nodes.checks import Expected, Judge, Verdict
from glmspark.nodes.checks.alike import identity_of
from glmspark.nodes.facts.disks import DISKS, disk_of, stored
from glmspark.nodes.facts.docker import ENGINE, IMAGES
from glmspark.nodes.facts.login import USER
from glmspark.nodes.survey import Facts

MARGIN = 0.05
"""Share of a disk that should stay free."""


def space(facts: Facts, expected: Expected) -> Iterator[Verdict]:
    """Free disk for the weights under the models path and for the image under Docker's root."""
    disks = facts.get(DISKS)
    if disks is None:
        yield Judge("disk", facts.node).unread(facts, DISKS)
        return
    user = facts.get(USER)
    home = "/root" if user is not None and user.uid == 0 else f"/home/{user.name if user else ''}"
    models = home + expected.models[1:] if expected.models.startswith("~/") else expected.models
    wants: dict[str, tuple[int, list[str]]] = {}
    if expected.weights is not None:
        there = facts.get(stored(expected.model)) if expected.model is not None else None
        _want(wants, models, max(expected.weights - (there or 0), 0), "weights")
    engine, images = facts.get(ENGINE), facts.get(IMAGES)
    missing = expected.image is not None and identity_of(images or (), expected.image) is None
    if missing and engine is not None and engine.root:
        _want(wants, engine.root, expected.image_size, "the image")
    if not wants:
        _want(wants, models, 0, "weights")
    by_disk: dict[str, tuple[int, list[str]]] = {}
    for path, (size, what) in wants.items():
        disk = disk_of(disks, path)
        if disk is None:
            yield Judge("disk", facts.node).unknown(f"no file system holds {path}")
            continue
        before = by_disk.get(disk.target, (0, []))
        by_disk[disk.target] = (before[0] + size, before[1] + what)
    for disk in disks:
        if disk.target not in by_disk:
            continue
        size, what = by_disk[disk.target]
        judge = Judge("disk", facts.node)
        seen = f"{disk.target}: {format_size(disk.free)} of {format_size(disk.size)} free"
        need = f", {format_size(size)} needed for {' and '.join(what)}" if size else ""
        if disk.free < size:
            yield judge.blocked(f"{seen}{need}", f"free some space under {disk.target}, or set paths.models")
        elif disk.free - size < disk.size * MARGIN:
            yield judge.slow(
                f"{seen}{need}: hardly anything will be left", f"free some space under {disk.target}"
            )
        else:
            yield judge.ok(f"{seen}{need}")


def _want(wants: dict[str, tuple[int, list[str]]], path: str, size: int, what: str) -> None:
    before = wants.get(path, (0, []))
    wants[path] = (before[0] + size, [*before[1], what])
