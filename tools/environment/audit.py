"""Find what a killed pip left half done, by reading what it wrote; nothing is imported or run.

pip writes a package's files, then INSTALLER, and last of all RECORD anew with INSTALLER in it. So a RECORD
that names INSTALLER means that every file had been written, unless a later, killed uninstall took some away.
"""

import csv
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

INFO = ".dist-info"


def _records(info: Path) -> list[tuple[str, int | None]] | None:
    """(path, bytes) of each file in a RECORD; None where it is missing, unreadable or the wheel's own."""
    try:
        with (info / "RECORD").open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if row]
        records = [(row[0], int(row[2]) if row[2] else None) for row in rows]
    except (OSError, ValueError, IndexError, csv.Error):
        return None
    if not (info / "METADATA").is_file() or f"{info.name}/INSTALLER" not in {path for path, _ in records}:
        return None
    return records


def infos(site: Path) -> list[Path]:
    """The .dist-info folders in a site-packages folder, without leftovers of a killed uninstall (~name)."""
    if not site.is_dir():
        return []
    return sorted(p for p in site.iterdir() if p.name.endswith(INFO) and not p.name.startswith("~"))


def broken(site: Path) -> dict[Path, str]:
    """The .dist-info folders of packages that are not whole, with what is wrong with each.

    A file that is longer than recorded is no fault: people add their certificates to certifi's bundle. Where
    two packages claim one file, any of the recorded sizes will do.
    """
    faults: dict[Path, str] = {}
    whole: dict[Path, list[tuple[str, int | None]]] = {}
    smallest: dict[str, int] = {}
    for info in infos(site):
        records = _records(info)
        if records is None:
            faults[info] = "installation did not finish"
            continue
        whole[info] = records
        for path, size in records:
            smallest[path] = min(smallest.get(path, size or 0), size or 0)
    for info, records in whole.items():
        for path, _ in records:
            try:
                size = os.stat(site / path).st_size  # noqa: PTH116 (60,000 of them: pathlib costs a second)
            except OSError:
                faults[info] = f"{path} is missing"
                break
            if size < smallest[path]:
                faults[info] = f"{path} is cut short"
                break
    return faults


def leftovers(site: Path) -> list[Path]:
    """What a killed uninstall moved aside: pip renames `torch` to `~orch` and the like before deleting."""
    return sorted(p for p in site.iterdir() if p.name.startswith("~")) if site.is_dir() else []


def mend(faults: Iterable[Path], leftover: Iterable[Path]) -> None:
    """Make pip see broken packages as not installed, so that it writes them again over what is there."""
    for info in faults:
        # METADATA first: without it pip no longer counts the package, should this be killed half-way.
        (info / "METADATA").unlink(missing_ok=True)
        shutil.rmtree(info)
    for path in leftover:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
