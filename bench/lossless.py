"""Speculation on the CPU against transformers, on hundreds of prompts: nothing may change but the speed.

    python -m bench.lossless [--prompts 500] [--at-once 16] [--list] [SETTING ...]

Each setting is a deployment of glm-tiny with a drafter. Every token of every answer is compared with what
transformers says after the same tokens: it has to be the best, or within 0.02 logits of it, a tie. By hand:
a setting takes minutes. Prints a table; exit code 1 where a setting changed an answer.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import glmspark
from tests.engine.ranks import Layout, Ranks
from tests.engine.reference import Reference
from tests.engine.test_parity import REGRET_BOUND
from tests.engine.test_speculation_stages import counted
from tools.glm_tiny.drafter_prompts import lines

CHECKPOINT = Path(glmspark.__file__).parent / "recipes/checkpoints/glm-tiny"
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
MTP = {"method": "mtp", "num_speculative_tokens": 1}


@dataclass(frozen=True)
class Setting:
    """A layout, a drafter, and further flags and variables."""

    layout: Layout
    draft: dict[str, object]
    flags: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


SETTINGS = {
    "TP1, MTP": Setting(Layout(1, 1), MTP),
    "TP2, MTP": Setting(Layout(2, 1), MTP, {"max-num-seqs": "16"}),
    "TP2, n-gram": Setting(Layout(2, 1), NGRAM),
    "PP2, n-gram": Setting(Layout(1, 2), NGRAM),
    "TP2 DCP2, n-gram": Setting(
        Layout(2, 1), NGRAM, {"decode-context-parallel-size": "2", "dcp-comm-backend": "a2a"}
    ),
    "TP1, n-gram, policy auto": Setting(
        Layout(1, 1), NGRAM, {"max-num-seqs": "4"}, {"GLMSPARK_DRAFT_POLICY": "auto"}
    ),
}


def asked(reference: Reference, count: int) -> list[tuple[list[int], int]]:
    """Prompts of all kinds and lengths that glm-tiny knows: (tokens, most tokens of the answer)."""
    found = []
    for line in lines(count, 4):
        value = json.loads(line)
        text = reference.tokenizer.apply_chat_template(
            value["messages"], tools=value.get("tools"), tokenize=False, add_generation_prompt=True,
            **value.get("template", {}),
        )  # fmt: skip
        found.append((list(reference.tokenizer(text, add_special_tokens=False)["input_ids"]), 160))
    return found


def judge(setting: Setting, reference: Reference, prompts: list[tuple[list[int], int]], at_once: int) -> str:
    """What became of a setting; begins with "BAD" where an answer changed."""
    flags = {"speculative-config": json.dumps(setting.draft), **setting.flags}
    start = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as logs,
        Ranks(CHECKPOINT, setting.layout, Path(logs), flags, dict(setting.environment)) as running,
    ):
        loaded = time.monotonic() - start
        outputs: list[list[int]] = []
        for begin in range(0, len(prompts), at_once):
            outputs += running.complete(prompts[begin : begin + at_once])
            sys.stderr.write(f"\r{len(outputs)} of {len(prompts)} answers")
        drafted, accepted = counted(running)
    sys.stderr.write("\r\x1b[K")
    seconds = time.monotonic() - start - loaded
    places = [
        place
        for (ids, _), out in zip(prompts, outputs, strict=True)
        for place in reference.disagreements(ids, out)
    ]
    worst = max((place.regret for place in places), default=0.0)
    ended = all(reference.ends(out, most) for (_, most), out in zip(prompts, outputs, strict=True))
    good = worst <= REGRET_BOUND and ended and accepted > 0
    return (
        f"{'ok ' if good else 'BAD'} {len(prompts)} prompts, {sum(map(len, outputs))} tokens in "
        f"{seconds:.0f} s; {accepted} of {drafted} drafts accepted; {len(places)} ties, "
        f"regret at most {worst:.4f}"
    )


def main() -> int:
    """Judge the settings and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.list:
        print("\n".join(SETTINGS))
        return 0
    names = args.settings or list(SETTINGS)
    if unknown := [name for name in names if name not in SETTINGS]:
        parser.error(f"no setting is called {unknown[0]!r}; see --list")
    reference = Reference(CHECKPOINT)
    prompts = asked(reference, args.prompts)
    rows = {}
    for name in names:
        rows[name] = judge(SETTINGS[name], reference, prompts, args.at_once)
        print(f"{name:26} {rows[name]}", flush=True)
    return int(any(row.startswith("BAD") for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
