"""Why a deployment ended, in words: what was seen of it, and what to do next."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from glmspark.errors import GlmsparkError
from glmspark.launch.faults import FirstError
from glmspark.launch.phases import Phase, Progress
from glmspark.launch.ranks import describe_status, status_of
from glmspark.launch.record import RankRecord, Reason, Verdict
from glmspark.launch.symptoms import remedy_of

_TOLD = re.compile(r"died unexpectedly \(exit code: (-?\d+)\)")  # vLLM, of a worker it lost


def failed(what: str, *, seen: str | None = None, next_step: str | None = None) -> Reason:
    """A failure of no rank in particular."""
    return Reason(what=what, seen=seen, next=next_step, at=time.time())


def of_error(error: GlmsparkError) -> Reason:
    """An error as a reason."""
    return Reason(what=error.message, node=error.host, seen=error.seen, next=error.next, at=time.time())


def late(rank: RankRecord, progress: Progress, fault: FirstError, what: str, seconds: float) -> Reason:
    """A time limit that ran out while `rank` was the one waited for."""
    advice = (
        "check that all ranks' addresses and interfaces are of one network and that nothing filters it"
        if progress.phase is Phase.JOINING
        else f"see {rank.log}; --timeout gives it longer"
    )
    return Reason(
        what=f"{what} within {seconds:g} s: rank {rank.rank} is still {progress}",
        rank=rank.rank,
        node=rank.node,
        seen=fault.report(),
        next=advice,
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
    advice = remedy_of(seen) or f"see {rank.log}"
    if killer == "SIGKILL" or (status is None and fault.message is None):
        advice = (
            f"the kernel's out-of-memory killer acted {oom_kills} time(s) since the start: free some memory"
            if oom_kills > 0
            else "something outside killed it; `glmspark up` starts the deployment again"
        )
    return Reason(
        what=f"{who} {words}",
        rank=rank.rank,
        node=rank.node,
        exit_code=code,
        signal=killer,
        seen=seen,
        next=advice,
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
