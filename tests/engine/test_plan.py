"""What the plan says of a start, against what the started ranks say of themselves."""

from __future__ import annotations

import re
from pathlib import Path

from glmspark.config import load_recipe
from glmspark.models import inspect_checkpoint
from glmspark.plan import MachineFacts, Plan, plan_local
from tests.engine.ranks import FLAGS, Ranks


def planned(checkpoint: Path, ranks: Ranks) -> Plan:
    """The plan of glm-tiny with the engine settings that these tests use."""
    recipe = load_recipe("glm-tiny")
    changed = {
        "dtype": FLAGS["dtype"],
        "max_model_len": int(FLAGS["max-model-len"]),
        "kv_cache_memory": int(FLAGS["kv-cache-memory-bytes"]),
    }
    recipe = recipe.model_copy(update={"engine": recipe.engine.model_copy(update=changed)})
    roomy = MachineFacts("here", (0, 1), 2**50, 2**50)
    layout = ranks.layout
    return plan_local(recipe, inspect_checkpoint(checkpoint), facts=roomy, tp=layout.tp, pp=layout.pp)


def family(pid: int) -> list[int]:
    """A process and all below it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(below for child in children for below in family(int(child)))]


def kilobytes(text: str, row: str) -> int:
    """A row such as "VmHWM:   123 kB" of a file in /proc."""
    found = re.search(rf"^{row}:\s+(\d+) kB$", text, re.MULTILINE)
    assert found, row
    return int(found[1])


def taken_at_most(pid: int) -> int:
    """The most memory a process has had, in bytes, without mapped files (libraries). Pages that forked
    processes share count once."""
    proc = Path(f"/proc/{pid}")
    status = (proc / "status").read_text()
    burst = kilobytes(status, "VmHWM") - kilobytes(status, "VmRSS")
    return (kilobytes((proc / "smaps_rollup").read_text(), "Pss_Anon") + burst) * 1024


def test_the_kv_cache_holds_as_many_tokens_as_planned(checkpoint: Path, ranks: Ranks) -> None:
    """To the token: both sides round down to whole blocks."""
    said = re.search(r"KV cache size: ([\d,]+) tokens", ranks.log(0))
    assert said
    assert int(said[1].replace(",", "")) == planned(checkpoint, ranks).kv_tokens


def test_ranks_take_no_more_memory_than_planned_and_not_much_less(checkpoint: Path, ranks: Ranks) -> None:
    """After one prompt of full length. The plan is a promise to fit, so it errs upwards (seen: 5 to 20 %)."""
    ranks.complete([([5] * 2040, 4)])
    for rank in planned(checkpoint, ranks).ranks:
        taken = sum(map(taken_at_most, family(ranks.processes[rank.rank].pid)))
        assert 0.7 * rank.memory.needed <= taken <= rank.memory.needed, (rank.rank, taken, rank.memory)
