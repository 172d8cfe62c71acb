"""Plans: what is changed depends on what is there, and every change says why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.nodes.facts import Fact
from glmspark.nodes.facts.disks import DISKS, Disk
from glmspark.nodes.facts.docker import ENGINE, Engine
from glmspark.nodes.facts.login import LIMITS, LINGER, Limits
from glmspark.nodes.facts.memory_detail import MEMORY_DETAIL
from glmspark.nodes.facts.services import SERVICES, Service
from glmspark.nodes.facts.swaps import SWAPS, Swap
from glmspark.nodes.facts.sysctls import SYSCTLS
from glmspark.nodes.survey import Facts, Reading
from glmspark.nodes.tuning import MakeSwap, SetPath, SetSysctl, StopService, TunePlan, describe
from glmspark.nodes.tuning.plan import KEYS, SYSCTL_FILE, min_free, plan, settings
from tests.unit.nodes.sparks import GIB, MEMORY, SETTINGS, readings

# What is passed around for Sparks.
SEED = SETTINGS | {
    "vm.swappiness": 100,
    "vm.vfs_cache_pressure": 1000,
    "vm.min_free_kbytes": 2097152,
    "vm.compaction_proactiveness": 20,
}


def planned(changes: dict[Fact[Any], Any] | None = None, **options: Any) -> TunePlan:
    known = readings(1)
    for fact, value in (changes or {}).items():
        known[fact.name] = Reading(None, str(value)) if isinstance(value, Exception) else Reading(value)
    return plan(Facts("spark1", known), **options)


def unit(name: str) -> Service:
    return Service(name, loaded=True, active="active", enabled="enabled")


def test_a_healthy_node_is_left_alone() -> None:
    assert planned() == TunePlan("spark1", ())


def test_settings_that_hurt_are_replaced_with_reasons() -> None:
    (item,) = planned({SYSCTLS: SEED}).items
    values = {one.name: one.value for one in item.changes if isinstance(one, SetSysctl)}
    assert values == {
        "vm.swappiness": 10,
        "vm.vfs_cache_pressure": 100,
        "vm.min_free_kbytes": min_free(MEMORY.total) // 1024,
        "vm.compaction_proactiveness": 0,
    }
    (written,) = (one for one in item.changes if isinstance(one, SetPath))
    assert written.path == SYSCTL_FILE
    text = written.after.content.decode()
    for name, value in values.items():
        assert f"\n{name} = {value}\n" in text
    assert "before: 5.5 GiB" in text
    assert len(item.why) == len(values)


def test_dirty_pages_are_bounded_in_bytes_on_a_large_memory() -> None:
    current = SETTINGS | {"vm.dirty_ratio": 20, "vm.dirty_bytes": 0, "vm.dirty_background_bytes": 0}
    assert settings(current, 121 * GIB)["vm.dirty_bytes"][0] == GIB
    assert "vm.dirty_bytes" not in settings(current, 8 * GIB)
    assert "vm.dirty_bytes" not in settings(
        current | {"vm.dirty_bytes": 2**30, "vm.dirty_ratio": 0}, 121 * GIB
    )


@given(
    st.fixed_dictionaries({name: st.integers(0, 2**22) for name in SETTINGS}), st.integers(2 * GIB, 256 * GIB)
)
def test_tuned_settings_are_not_tuned_again(current: dict[str, int], total: int) -> None:
    after = current | {name: value for name, (value, _) in settings(current, total).items()}
    assert settings(after, total) == {}


@pytest.mark.parametrize(
    ("there", "free", "kind", "size"),
    [
        (0, 3000 * GIB, "ext4", 64 * GIB),
        (16 * GIB, 3000 * GIB, "ext4", 48 * GIB),
        (0, 80 * GIB, "xfs", 20 * GIB),
        (62 * GIB, 3000 * GIB, "ext4", None),
        (0, 10 * GIB, "ext4", None),
        (0, 3000 * GIB, "btrfs", None),
    ],
)
def test_swap_where_the_disk_allows(there: int, free: int, kind: str, size: int | None) -> None:
    areas = (Swap("/swap.img", "file", there, 0),) if there else ()
    found = planned({SWAPS: areas, DISKS: (Disk("d", kind, 4000 * GIB, free, "/"),)})
    sizes = [one.size for item in found.items for one in item.changes if isinstance(one, MakeSwap)]
    assert sizes == ([] if size is None else [size])
    if size is None and there < 62 * GIB:
        assert any(line.startswith("swap:") for line in found.left)


def test_services_are_stopped_and_masked() -> None:
    names = ("gdm.service", "earlyoom.service", "snapd.service", "docker.service", "ssh.service")
    (item,) = planned({SERVICES: {name: unit(name) for name in names}}).items
    assert {one.name for one in item.changes if isinstance(one, StopService)} == set(names[:3])
    assert all(one.after.target == "/dev/null" for one in item.changes if isinstance(one, SetPath))


def test_snapd_runs_on_where_docker_is_a_snap() -> None:
    engine = Engine("28", "x", "/var/snap/docker/common", "overlay2", ("nvidia",), cdi=False)
    found = planned({SERVICES: {"snapd.service": unit("snapd.service")}, ENGINE: engine})
    assert found.items == ()
    assert found.left == ("snapd.service runs on: Docker is a snap here",)


def test_limits_and_lingering() -> None:
    found = planned({LIMITS: Limits(8388608, 1024), LINGER: ()})
    assert [item.key for item in found.items] == ["limits", "linger"]
    assert "write /etc/security/limits.d/90-glmspark.conf" in [
        describe(one) for one in found.items[0].changes
    ]


def test_only_what_is_asked_for() -> None:
    changes = {SYSCTLS: SEED, LINGER: ()}
    assert [item.key for item in planned(changes, only=("linger",)).items] == ["linger"]


def test_what_cannot_be_read_is_left_and_said() -> None:
    found = plan(Facts("spark1", {}))
    assert found.items == ()
    assert len(found.left) == len(KEYS)
    assert planned({MEMORY_DETAIL: ValueError("odd")}).left == ("kernel settings: odd",)
