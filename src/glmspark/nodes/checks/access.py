"""Whether the nodes can be reached and worked on, and whether their clocks agree."""

from __future__ import annotations

from collections.abc import Iterator

from glmspark.nodes.checks import Judge, Look, Verdict
from glmspark.nodes.facts.clock import SYNCHRONIZED
from glmspark.nodes.facts.host import PRODUCT, SYSTEM
from glmspark.nodes.facts.login import SUDO, USER
from glmspark.nodes.survey import Facts

SKEW_SLOW = 0.5
"""Seconds of difference from which logs of several nodes can no longer be put in order."""
SKEW_BLOCKED = 30.0
"""Seconds from which leases, certificates and time limits between nodes go wrong."""


def reachable(look: Look) -> Iterator[Verdict]:
    """Every node answers over SSH."""
    for name, facts in look.facts.items():
        system = facts.get(SYSTEM)
        what = [facts.get(PRODUCT), None if system is None else system.name]
        named = ", ".join(one for one in what if one)
        yield Judge("ssh", name).ok(f"{named or 'answers'}; all facts took {facts.seconds:.1f} s")
    for name, error in look.lost.items():
        seen = f"{error.message}" + (f" ({error.seen})" if error.seen else "")
        yield Judge("ssh", name).blocked(seen, error.next or "connect to it by hand with ssh")


def sudo(facts: Facts) -> Verdict:
    """The user may become root without a password: tuning, the guard and dropping caches need it."""
    judge = Judge("sudo", facts.node)
    allowed, user = facts.get(SUDO), facts.get(USER)
    if user is not None and user.uid == 0:
        return judge.ok("connected as root")
    if allowed is None:
        return judge.unread(facts, SUDO)
    if allowed:
        return judge.ok("passwordless")
    name = user.name if user else "this user"
    return judge.blocked(
        f"{name} may not use sudo without a password",
        f"on the node: echo '{name} ALL=(ALL) NOPASSWD:ALL' | sudo tee /etc/sudoers.d/glmspark",
    )


def synchronised(facts: Facts) -> Verdict:
    """The node keeps its clock in step by itself."""
    judge = Judge("clock synchronised", facts.node)
    in_step = facts.get(SYNCHRONIZED)
    if in_step is None:
        return judge.unread(facts, SYNCHRONIZED)
    if in_step:
        return judge.ok("kept in step")
    return judge.slow("not synchronised", "on the node: sudo timedatectl set-ntp true")


def skew(look: Look) -> Iterator[Verdict]:
    """The nodes' clocks agree with one another, as far as the time a question takes lets us see."""
    known = {name: facts.skew for name, facts in look.facts.items() if facts.skew is not None}
    for name in look.facts:
        if name not in known:
            yield Judge("clock skew", name).unknown("the node did not tell its time")
    if len(known) < 2:
        return
    middle, unsure = sorted(known.values())[len(known) // 2]
    for name, (ahead, sure) in known.items():
        off = ahead - middle
        doubt = 0.0 if (ahead, sure) == (middle, unsure) else sure + unsure
        least = max(0.0, abs(off) - doubt)
        seen = f"{off:+.3f} s from the others (±{doubt:.3f})"
        judge = Judge("clock skew", name)
        remedy = "on the node: sudo timedatectl set-ntp true, then sudo systemctl restart systemd-timesyncd"
        if least > SKEW_BLOCKED:
            yield judge.blocked(seen, remedy)
        elif least > SKEW_SLOW:
            yield judge.slow(seen, remedy)
        else:
            yield judge.ok(seen)
