"""What logind and limits do to ranks."""

from __future__ import annotations

from glmspark.config.units import format_size
from glmspark.nodes.checks import Expected, Judge, Verdict
from glmspark.nodes.facts.login import LIMITS, LINGER, REMOVE_IPC, USER, VERBS
from glmspark.nodes.facts.processes import PROCESSES
from glmspark.nodes.survey import Facts

_LOGIND = "systemd-logind"


def remove_ipc(facts: Facts, expected: Expected) -> Verdict:
    """Semaphores and shared memory of ranks survive the end of our SSH session.

    With RemoveIPC=yes and no lingering, logind removes them when the user's last session ends: workers die
    with FileNotFoundError in SemLock. System users and root are spared by logind.
    """
    judge = Judge("RemoveIPC", facts.node)
    removes, user, lingering = facts.get(REMOVE_IPC), facts.get(USER), facts.get(LINGER)
    if removes is None:
        return judge.unread(facts, REMOVE_IPC)
    if user is None:
        return judge.unread(facts, USER)
    if not removes or user.uid < 1000:
        return judge.ok("off" if not removes else f"spares {user.name}")
    running = facts.get(PROCESSES)
    if running is not None and not any(one.name == _LOGIND for one in running):
        return judge.ok("no logind runs")
    if user.name in (lingering or ()):
        return judge.ok(f"on, but {user.name} lingers")
    seen = f"on, and {user.name} does not linger: logind removes his semaphores when the last session ends"
    remedy = f"`glmspark tune apply`, or on the node: sudo loginctl enable-linger {user.name}"
    return (judge.slow if expected.runtime == "docker" else judge.blocked)(seen, remedy, "linger")


def locked_memory(facts: Facts, expected: Expected) -> Verdict | None:
    """RDMA may lock memory. Containers get their own limit from us; other ranks have the user's."""
    if not expected.rdma or expected.runtime == "docker":
        return None
    judge = Judge("locked memory", facts.node)
    limits = facts.get(LIMITS)
    if limits is None:
        return judge.unread(facts, LIMITS)
    if limits.memlock is None:
        return judge.ok("unlimited")
    return judge.blocked(
        f"at most {format_size(limits.memlock)}: NCCL falls back to sockets or fails to register memory",
        "`glmspark tune apply`, then connect anew",
        "limits",
    )


def verbs(facts: Facts, expected: Expected) -> Verdict | None:
    """The device files that RDMA opens are there; a container without them silently uses sockets."""
    if not expected.rdma:
        return None
    judge = Judge("/dev/infiniband", facts.node)
    devices = facts.get(VERBS)
    if devices is None:
        return judge.unread(facts, VERBS)
    if not any(name.startswith("uverbs") for name in devices) or "rdma_cm" not in devices:
        return judge.blocked(
            f"{', '.join(devices) or 'empty or missing'}",
            "on the node: sudo modprobe -a mlx5_ib ib_uverbs rdma_ucm (package rdma-core)",
        )
    return judge.ok(f"{len(devices)} devices")
