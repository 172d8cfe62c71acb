"""What to tune on a node, and why: facts in, changes out.

The values are chosen per fact. Some that are passed around for Sparks hurt: swappiness 100 swaps the engine's
own host memory out, vfs_cache_pressure 1000 throws directory entries away over and over, and min_free_kbytes
of 2 GiB takes some 5.5 GiB from MemAvailable, on which vLLM's start-up check then fails.
"""

from __future__ import annotations

from collections.abc import Collection

from glmspark.config.units import format_size
from glmspark.nodes.checks.memory import available_loss
from glmspark.nodes.facts.disks import DISKS, disk_of
from glmspark.nodes.facts.docker import ENGINE
from glmspark.nodes.facts.login import LIMITS, LINGER, REMOVE_IPC, USER
from glmspark.nodes.facts.memory_detail import MEMORY_DETAIL
from glmspark.nodes.facts.services import GRAPHICAL, RIVALS, SERVICES
from glmspark.nodes.facts.swaps import SWAPS
from glmspark.nodes.facts.sysctls import SYSCTLS
from glmspark.nodes.survey import Facts
from glmspark.nodes.tuning import (
    Change,
    Item,
    Linger,
    MakeSwap,
    PathState,
    SetPath,
    SetSysctl,
    StopService,
    TunePlan,
)
from glmspark.nodes.tuning.guard import Wish, guard_item

KEYS = ("sysctl", "swap", "services", "limits", "linger", "guard")
SYSCTL_FILE = "/etc/sysctl.d/90-glmspark.conf"
LIMITS_FILE = "/etc/security/limits.d/90-glmspark.conf"
SWAP_FILE = "/var/lib/glmspark/swap.img"
SWAP_UNIT = "/etc/systemd/system/var-lib-glmspark-swap.img.swap"
SWAP_WANTED = "/etc/systemd/system/swap.target.wants/var-lib-glmspark-swap.img.swap"
GIB = 2**30
SWAP_SIZE = 64 * GIB
# A swap file needs a file system that gives it fixed blocks.
_SWAP_ON = ("ext4", "xfs")


def plan(
    facts: Facts,
    *,
    swap_size: int = SWAP_SIZE,
    only: Collection[str] = KEYS,
    guard: Wish | None = None,
) -> TunePlan:
    """What is worth changing on a node. swap_size: bytes of swap wanted in all. only: keys of items. guard:
    how it should be set up there, if at all."""
    items: list[Item] = []
    left: list[str] = []
    for key, make in (
        ("sysctl", _sysctl),
        ("swap", lambda facts, left: _swap(facts, left, swap_size)),
        ("services", _services),
        ("limits", _limits),
        ("linger", _linger),
        ("guard", lambda facts, left: guard_item(facts, left, guard)),
    ):
        if key in only:
            item = make(facts, left)
            if item is not None:
                items.append(item)
    return TunePlan(facts.node, tuple(items), tuple(left))


def settings(current: dict[str, int], total: int) -> dict[str, tuple[int, str]]:
    """Kernel settings worth changing: name -> value and why. total: bytes of memory."""
    found: dict[str, tuple[int, str]] = {}

    def want(name: str, value: int, why: str) -> None:
        if name in current and current[name] != value:
            found[name] = (value, f"{name} {current[name]} → {value}: {why}")

    swappiness = current.get("vm.swappiness", 10)
    if not 5 <= swappiness <= 30:
        want("vm.swappiness", 10, "0 and 1 wedge a node before it swaps, 60 and more swap the engine out")
    if current.get("vm.vfs_cache_pressure", 100) > 200:
        want("vm.vfs_cache_pressure", 100, "higher values drop directory entries that are needed at once")
    reserve = min_free(total) // 1024
    now = current.get("vm.min_free_kbytes", reserve)
    if now < reserve // 2 or now * 1024 > total // 100:
        scale = current.get("vm.watermark_scale_factor", 10)
        before = available_loss(total, now * 1024, scale)
        after = available_loss(total, reserve * 1024, scale)
        want(
            "vm.min_free_kbytes",
            reserve,
            f"a reserve for network and sshd; takes {format_size(after)} from MemAvailable "
            f"(before: {format_size(before)})",
        )
    want("vm.compaction_proactiveness", 0, "compacting in the background disturbs decoding")
    want("vm.panic_on_oom", 0, "a process too many must not take the node down")
    if current.get("vm.overcommit_memory") == 2:
        want("vm.overcommit_memory", 0, "CUDA reserves far more addresses than there is memory")
    if current.get("net.ipv4.conf.all.rp_filter") == 1:
        want("net.ipv4.conf.all.rp_filter", 2, "both halves of a port may answer for one another")
    share = current.get("vm.dirty_ratio", 0) * total // 100
    if not current.get("vm.dirty_bytes") and share > 4 * GIB:
        # Writing the bytes sets the ratio to 0 and the other way round.
        why = f"{current['vm.dirty_ratio']} % of memory are {format_size(share)} that CUDA waits for"
        want("vm.dirty_background_bytes", 256 * 2**20, why)
        want("vm.dirty_bytes", GIB, why)
    return found


def min_free(total: int) -> int:
    """A reserve for atomic allocations: a quarter of a percent of memory, 64 MiB to 512 MiB, in bytes."""
    return max(64 * 2**20, min(total // 400, 512 * 2**20)) // 2**20 * 2**20


def _sysctl(facts: Facts, left: list[str]) -> Item | None:
    current, memory = facts.get(SYSCTLS), facts.get(MEMORY_DETAIL)
    if current is None or memory is None:
        left.append(f"kernel settings: {facts.problem(SYSCTLS) or facts.problem(MEMORY_DETAIL)}")
        return None
    wanted = settings(current, memory.total)
    if not wanted:
        return None
    lines = ["# Written by `glmspark tune apply`; `glmspark tune restore` removes it."]
    for name, (value, why) in wanted.items():
        lines += [f"# {why}", f"{name} = {value}"]
    changes: list[Change] = [SetPath(SYSCTL_FILE, _file("\n".join(lines) + "\n"))]
    changes += [SetSysctl(name, value) for name, (value, _) in wanted.items()]
    return Item("sysctl", "kernel settings", tuple(changes), tuple(why for _, why in wanted.values()))


def _swap(facts: Facts, left: list[str], wanted: int) -> Item | None:
    areas, disks = facts.get(SWAPS), facts.get(DISKS)
    if areas is None or disks is None:
        left.append(f"swap: {facts.problem(SWAPS) or facts.problem(DISKS)}")
        return None
    there = sum(area.size for area in areas)
    lacking = (wanted - there) // GIB * GIB
    if lacking < 4 * GIB:
        return None
    disk = disk_of(disks, SWAP_FILE)
    if disk is None or disk.kind not in _SWAP_ON:
        left.append(f"swap: {SWAP_FILE} would lie on {disk.kind if disk else 'nothing'}, not on ext4 or xfs")
        return None
    # Weights come first: a swap file takes at most a quarter of what is free.
    size = min(lacking, disk.free // 4) // GIB * GIB
    if size < 4 * GIB:
        left.append(f"swap: only {format_size(disk.free)} free on {disk.target}")
        return None
    unit = (
        "# Written by `glmspark tune apply`; `glmspark tune restore` removes it.\n"
        "[Unit]\nDescription=Swap file of glmspark\n\n"
        f"[Swap]\nWhat={SWAP_FILE}\nPriority=-10\n\n[Install]\nWantedBy=swap.target\n"
    )
    why = f"{format_size(there)} of swap there: {format_size(size)} more let a moment of pressure pass"
    if size < lacking:
        why += (
            f" ({format_size(lacking)} would be better, but {disk.target} has {format_size(disk.free)} free)"
        )
    return Item(
        "swap",
        "swap file",
        (
            MakeSwap(SWAP_FILE, size),
            SetPath(SWAP_UNIT, _file(unit)),
            SetPath(SWAP_WANTED, PathState("link", target=SWAP_UNIT)),
        ),
        (why,),
    )


def _services(facts: Facts, left: list[str]) -> Item | None:
    units = facts.get(SERVICES)
    if units is None:
        left.append(f"services: {facts.problem(SERVICES)}")
        return None
    engine = facts.get(ENGINE)
    changes: list[Change] = []
    why = []
    for name, unit in units.items():
        if not unit.running:
            continue
        if name in GRAPHICAL:
            why.append(f"stop {name}: a desktop takes about 2 GiB from the KV cache")
        elif name in RIVALS:
            why.append(f"stop {name}: it kills ranks while they load or capture graphs")
        elif name.startswith("snapd"):
            if engine is not None and "/snap/" in engine.root:
                left.append(f"{name} runs on: Docker is a snap here")
                continue
            why.append(f"stop {name}: it refreshes, and fills the page cache, when it likes")
        else:
            continue
        # Masked as well, so that neither a start of the node nor another unit brings it back.
        changes += [
            SetPath(f"/etc/systemd/system/{name}", PathState("link", target="/dev/null")),
            StopService(name),
        ]
    return Item("services", "services", tuple(changes), tuple(why)) if changes else None


def _limits(facts: Facts, left: list[str]) -> Item | None:
    limits, user = facts.get(LIMITS), facts.get(USER)
    if limits is None or user is None:
        left.append(f"limits: {facts.problem(LIMITS) or facts.problem(USER)}")
        return None
    if limits.memlock is None:
        return None
    text = (
        "# Written by `glmspark tune apply`; `glmspark tune restore` removes it.\n"
        f"{user.name} soft memlock unlimited\n{user.name} hard memlock unlimited\n"
    )
    why = f"{user.name} may lock {format_size(limits.memlock)}: RDMA locks the memory it sends from"
    return Item("limits", "limits", (SetPath(LIMITS_FILE, _file(text)),), (why,))


def _linger(facts: Facts, left: list[str]) -> Item | None:
    user, removes, lingering = facts.get(USER), facts.get(REMOVE_IPC), facts.get(LINGER)
    if user is None or removes is None:
        left.append(f"linger: {facts.problem(USER) or facts.problem(REMOVE_IPC)}")
        return None
    if not removes or user.uid < 1000 or user.name in (lingering or ()):
        return None
    why = f"RemoveIPC is on: logind would remove {user.name}'s semaphores when the last session ends"
    return Item("linger", "lingering", (Linger(user.name),), (why,))


def _file(text: str) -> PathState:
    return PathState("file", text.encode())
