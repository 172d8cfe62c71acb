"""Make docs/troubleshooting.md from the catalogue: `python -m tools.troubleshooting [--check]`."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from glmspark.symptoms.catalogue import Severity, Symptom, catalogue

PAGE = Path(__file__).parents[1] / "docs" / "troubleshooting.md"

_HEAD = """\
# Troubleshooting

<!-- Made by `python -m tools.troubleshooting` from src/glmspark/symptoms/*.yaml: change those. -->

`glmspark explain` looks all of this up for you: after a start that failed, with no argument; on any vLLM's
log (`glmspark explain vllm.log`, `docker logs vllm 2>&1 | glmspark explain -`); on a directory or a bundle;
and on nodes as they are now (`--live`). It reads at most 48 MiB from each end of a log, for at most 30 s.
This page has the whole catalogue, for reading.

Where nothing in here helps, `glmspark bundle` packs what a bug report needs into one archive: record, recipe,
plan, logs, evidence, the guards' last hour, what doctor sees, versions. API keys, tokens, passwords and
Authorization headers are removed on the way, on each node what its secret files hold before anything leaves
it; `--anonymous` replaces user names, home directories and public addresses too. Text that was sent to the
model may stand in logs: look through it before you hand it on.

Each entry says what shows it: lines of a log (`.*` stands for anything), or facts. "Surer with" names facts
that confirm it, "not with" those that rule it out. Facts called `check.X` are `glmspark doctor`'s checks,
`guard.X` is what the guard says on the node, `arg.X` a vLLM argument, `canary.failed` the kind of canary that
failed.
"""

_TITLES = {
    Severity.NODE: "A machine is lost, or about to be",
    Severity.FATAL: "It does not start, or ends",
    Severity.STALL: "It neither answers nor ends",
    Severity.WRONG: "It answers, and wrongly",
    Severity.SLOW: "It works, and slowly",
    Severity.FOLLOWS: "Messages that are never the cause",
}


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for severity, title in _TITLES.items():
        parts.append(f"\n## {title}\n")
        parts += [_entry(one) for one in catalogue() if one.severity is severity]
    return "".join(parts)


def _entry(one: Symptom) -> str:
    shown = [f"`{pattern.source}`" for pattern in one.lines]
    if one.when:
        shown.append(" and ".join(str(condition) for condition in one.when))
    items = ["Shown by: " + "; ".join(shown)]
    for title, conditions in (("Surer with", one.confirms), ("Not with", one.rules_out)):
        if conditions:
            items.append(f"{title}: " + "; ".join(str(condition) for condition in conditions))
    items += [f"Cause: {one.cause}", f"What to do: {one.remedy}", "Sources: " + ", ".join(one.sources)]
    return f"\n### {one.title}\n\n`{one.name}`\n\n" + "\n".join(map(_item, items)) + "\n"


def _item(text: str) -> str:
    return textwrap.fill(
        text,
        116,
        initial_indent="- ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def main() -> int:
    """Write the page; with --check only say whether it is up to date."""
    text = page()
    if "--check" in sys.argv[1:]:
        current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        if current != text:
            print(f"{PAGE} is out of date: python -m tools.troubleshooting", file=sys.stderr)
        return int(current != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
