"""Why a deployment ended, in words: what was seen of it, and what to do next."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from glmspark.errors import GlmsparkError
from glmspark.launch.faults import FirstError
from glmspark.launch.phases import Phase, Progress
from glmspark.launch.ranks import describe_status, status_of
from glmspark.launch.record import RankRecord, Reason, Verdict

if TYPE_CHECKING:
    from glmspark.symptoms.match import Finding

_TOLD = re.compile(r"died unexpectedly \(exit code: (-?\d+)\)")  # vLLM, of a worker it lost


_SURE, _SURE_OF_HINTS = 0.5, 0.75
"""How sure a symptom must be to be named: what the first error shows, and what only stands near it."""


def symptom_of(fault: FirstError, facts: Mapping[str, Any] | None = None) -> Finding | None:
    """The catalogue's symptom for how a rank ended: of its first error, else of what it warned of before."""
    # The catalogue is read when something has failed, not by every process of a deployment that runs.
    from glmspark.symptoms.facts import Facts
    from glmspark.symptoms.match import first_in

    known = Facts.of(facts or {})
    if (found := first_in(fault.report(), known)) is not None and found.sure >= _SURE:
        return found
    found = first_in("\n".join(fault.hints), known)
    return found if found is not None and found.sure >= _SURE_OF_HINTS else None


def advice_of(found: Finding) -> str:
    """What to do about a symptom, as `next` prints it."""
    return f"{found.symptom.title}. {found.symptom.remedy} (`glmspark explain` tells more)"


def failed(what: str, *, seen: str | None = None, next_step: str | None = None) -> Reason:
    """A failure of no rank in particular."""
    return Reason(what=what, seen=seen, next=next_step, at=time.time())


def of_error(error: GlmsparkError) -> Reason:
    """An error as a reason."""
    return Reason(what=error.message, node=error.host, seen=error.seen, next=error.next, at=time.time())


def late(rank: RankRecord, progress: Progress, fault: FirstError, what: str, seconds: float) -> Reason:
    """A time limit that ran out while `rank` was the one waited for."""
    found = symptom_of(fault)
    if found is None and progress.phase is Phase.JOINING:
        from glmspark.symptoms.match import first_in

        found = first_in(what)
    return Reason(
        what=f"{what} within {seconds:g} s: rank {rank.rank} is still {progress}",
        rank=rank.rank,
        node=rank.node,
        seen=fault.report(),
        next=advice_of(found) if found is not None else f"see {rank.log}; --timeout gives it longer",
        symptom=found.symptom.name if found is not None else None,
        at=time.time(),
    )


def ended(
    rank: RankRecord, fault: FirstError, *, pid: int, title: str, status: int | None, oom_kills: int
) -> Reason:
    """A process of a rank that ended. title: '' for its main process, else vLLM's title of it.

    status: as waitpid gives it, None where nobody saw it. oom_kills: how often the kernel's out-of-memory
    killer has acted since the start.
    """
    if status is None and (told := _TOLD.search(fault.said or "")):
        status = status_of(int(told[1]))
    code, killer, words = (None, None, "ended") if status is None else describe_status(status)
    name = title.removeprefix("VLLM::")
    who = f"rank {rank.rank}'s {name} (pid {pid})" if name else f"rank {rank.rank} (pid {pid})"
    seen = fault.report()
    if killer == "SIGKILL" and fault.message is None:
        seen = fault.said  # it had no chance to say why: its last lines are of something else
    killed = killer == "SIGKILL" or (status is None and fault.message is None)
    facts: dict[str, Any] = {"reason.signal": "SIGKILL", "reason.oom_kills": oom_kills} if killed else {}
    found = symptom_of(fault, facts)
    return Reason(
        what=f"{who} {words}",
        rank=rank.rank,
        node=rank.node,
        exit_code=code,
        signal=killer,
        seen=seen,
        next=advice_of(found) if found is not None else f"see {rank.log}",
        symptom=found.symptom.name if found is not None else None,
        at=time.time(),
    )


def unproven(
    verdicts: Sequence[Verdict],
    code: int | None,
    *,
    prover_log: str,
    head_log: str,
    trouble: str | None = None,
) -> Reason:
    """Canaries that failed; or, with none, proving that did not end (code None) or ended badly.

    trouble: what kept the state directory from being written meanwhile, which stops the prover too.
    """
    wrong = [verdict for verdict in verdicts if not verdict.passed]
    if not wrong:
        how = "did not end in time" if code is None else f"ended with exit code {code}"
        return failed(f"proving the endpoint {how}", seen=trouble, next_step=f"see {prover_log}")
    first = wrong[0]
    causes = "; ".join(first.causes)
    return failed(
        f"{len(wrong)} of {len(verdicts)} canaries failed: {', '.join(verdict.name for verdict in wrong)}",
        seen=f"{first.name}: {first.evidence}",
        next_step=f"likely causes: {causes}" if causes else f"see {head_log}",
    )
