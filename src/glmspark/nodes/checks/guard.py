"""Whether the guard watches over a node."""

from __future__ import annotations

from glmspark.guard import VERSION
from glmspark.nodes.checks import Judge, Verdict
from glmspark.nodes.guards import DIRECTORY, GUARD, SEEN
from glmspark.nodes.survey import Facts

_APPLY = "`glmspark tune apply --only guard` installs it; without it a node short of memory loses sshd"


def runs(facts: Facts) -> Verdict:
    """The guard runs, is of this version, and is not alarmed."""
    judge = Judge("guard", facts.node)
    seen = facts.get(SEEN)
    if seen is None:
        return judge.unread(facts, SEEN)
    if not seen.runs or seen.state is None:
        if not seen.systemd:
            return judge.slow("it does not run, and there is no systemd", "docs/guard.md says how to run it")
        last = "" if seen.age is None else f"; it last said something {seen.age:.0f} s ago"
        return judge.slow(f"it does not run ({seen.unit or 'not installed'}){last}", _APPLY, "guard")
    version = seen.state.get("guard")
    if seen.home == DIRECTORY and seen.program != GUARD.digest:
        return judge.slow(f"version {version} runs, not this glmspark's {VERSION}", _APPLY, "guard")
    alerts = [str(one.get("what")) for one in seen.state.get("alerts") or () if isinstance(one, dict)]
    if alerts:
        more = f" (and {len(alerts) - 1} more)" if len(alerts) > 1 else ""
        return judge.slow(f"version {version} runs, and is alarmed: {alerts[0]}{more}", "`glmspark guard`")
    return judge.ok(f"version {version} runs")
