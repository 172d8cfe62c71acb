"""Apply and restore: a node is afterwards byte for byte what it was, also when it broke off anywhere."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from glmspark.nodes.transport import NodeError
from glmspark.nodes.tuning import (
    JOURNAL,
    Item,
    Linger,
    MakeSwap,
    PathState,
    SetPath,
    SetSysctl,
    StopService,
    TunePlan,
)
from glmspark.nodes.tuning.journal import Entry, Journal
from glmspark.nodes.tuning.plan import SWAP_FILE, SYSCTL_FILE
from glmspark.nodes.tuning.tuner import Tuner
from tests.unit.nodes.tuning.pretend import PretendNode, tree

PLAN = TunePlan(
    "spark1",
    (
        Item(
            "sysctl",
            "",
            (
                SetPath(SYSCTL_FILE, PathState("file", b"vm.swappiness = 10\n")),
                SetSysctl("vm.swappiness", 10),
                SetSysctl("vm.dirty_background_bytes", 2**28),
                SetSysctl("vm.dirty_bytes", 2**30),
            ),
            (),
        ),
        Item("swap", "", (MakeSwap(SWAP_FILE, 2**30),), ()),
        Item(
            "services",
            "",
            (
                SetPath("/etc/systemd/system/gdm.service", PathState("link", target="/dev/null")),
                StopService("gdm.service"),
                SetPath("/etc/systemd/system/earlyoom.service", PathState("link", target="/dev/null")),
                StopService("earlyoom.service"),
                SetPath("/etc/systemd/system/snapd.socket", PathState("link", target="/dev/null")),
                StopService("snapd.socket"),
                StopService("systemd-oomd.service"),
            ),
            (),
        ),
        Item(
            "limits", "", (SetPath("/etc/security/limits.d/90-glmspark.conf", PathState("file", b"x")),), ()
        ),
        Item("linger", "", (Linger("me"),), ()),
    ),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node's tree where some of what the plan writes is there already, in other forms."""
    system = tmp_path / "etc/systemd/system"
    system.mkdir(parents=True)
    (tmp_path / "etc/sysctl.d").mkdir()
    (tmp_path / "etc/sysctl.d/99-mine.conf").write_text("vm.swappiness = 100\n")
    (system / "gdm.service").symlink_to("/usr/lib/systemd/system/gdm3.service")
    (system / "earlyoom.service").write_bytes(b"[Unit]\n\xff\x00\n")
    (system / "earlyoom.service").chmod(0o640)
    (tmp_path / "var/lib").mkdir(parents=True)
    return tmp_path


def tuner(node: PretendNode, root: Path) -> Tuner:
    return Tuner(node, root=str(root), sudo=False)


def test_applied_and_restored_is_as_before(root: Path) -> None:
    node = PretendNode()
    before, was = tree(root), node.state()

    asyncio.run(tuner(node, root).apply(PLAN))
    assert (root / SYSCTL_FILE[1:]).read_bytes() == b"vm.swappiness = 10\n"
    assert str((root / "etc/systemd/system/gdm.service").readlink()) == "/dev/null"
    assert node.settings["vm.swappiness"] == 10
    assert node.settings["vm.dirty_ratio"] == 0
    assert node.running == set()
    assert node.swaps == {str(root / SWAP_FILE[1:])}
    assert node.lingering == {"me"}
    assert (root / JOURNAL[1:]).stat().st_mode & 0o777 == 0o600

    assert asyncio.run(tuner(node, root).restore()) == []
    assert tree(root) == before
    assert node.state() == was
    assert node.reloads == 2


def test_applied_twice_still_restores_the_first_state(root: Path) -> None:
    node = PretendNode()
    before, was = tree(root), node.state()
    second = TunePlan(
        "spark1",
        (
            Item(
                "sysctl",
                "",
                (SetPath(SYSCTL_FILE, PathState("file", b"other\n")), SetSysctl("vm.swappiness", 20)),
                (),
            ),
        ),
    )
    for plan in (PLAN, PLAN, second):
        asyncio.run(tuner(node, root).apply(plan))
    assert (root / SYSCTL_FILE[1:]).read_bytes() == b"other\n"
    assert asyncio.run(tuner(node, root).restore()) == []
    assert (tree(root), node.state()) == (before, was)


def test_broken_off_after_any_command_it_can_be_restored(root: Path) -> None:
    node = PretendNode()
    before, was = tree(root), node.state()
    asyncio.run(tuner(node, root).apply(PLAN))
    whole = node.commands
    asyncio.run(tuner(node, root).restore())
    assert (tree(root), node.state()) == (before, was)
    for count in range(random.randrange(1, 60), whole, 60):  # other ones in each run: many over time
        broken = PretendNode()
        broken.fail_after = count
        with pytest.raises(NodeError):
            asyncio.run(tuner(broken, root).apply(PLAN))
        broken.fail_after = None
        asyncio.run(tuner(broken, root).restore())
        # The journal's directory may stand: it is made before there is a journal to note it in.
        assert {path: what for path, what in tree(root).items() if path != "var/lib/glmspark"} == before, (
            count
        )
        assert broken.state() == was, count


@pytest.mark.parametrize("count", [3, 15, random.Random().randrange(1, 60)], ids=["lingering", "link", "any"])
def test_a_restore_that_broke_off_is_taken_up_again(root: Path, count: int) -> None:
    before = tree(root)
    node = PretendNode()
    was = node.state()
    asyncio.run(tuner(node, root).apply(PLAN))
    node.fail_after = node.commands + count
    try:
        asyncio.run(tuner(node, root).restore())
    except NodeError:
        node.fail_after = None
        asyncio.run(tuner(node, root).restore())
    left = {path: what for path, what in tree(root).items() if path != "var/lib/glmspark"}
    assert left == before, count
    assert node.state() == was, count


def test_what_someone_else_changed_since_is_left_alone(root: Path) -> None:
    node = PretendNode()
    asyncio.run(tuner(node, root).apply(PLAN))
    (root / SYSCTL_FILE[1:]).write_text("by hand\n")
    node.settings["vm.swappiness"] = 33
    left = asyncio.run(tuner(node, root).restore())
    assert len(left) == 2
    assert all("by someone else since" in line for line in left)
    assert (root / SYSCTL_FILE[1:]).read_text() == "by hand\n"
    assert node.settings["vm.swappiness"] == 33


def test_restore_without_a_journal_does_nothing(root: Path) -> None:
    node = PretendNode()
    before, was = tree(root), node.state()
    assert asyncio.run(tuner(node, root).restore()) == []
    assert (tree(root), node.state()) == (before, was)


def test_a_swap_file_that_is_not_ours_is_not_touched(root: Path) -> None:
    (root / "var/lib/glmspark").mkdir()
    (root / SWAP_FILE[1:]).write_text("precious")
    with pytest.raises(NodeError, match="not ours"):
        asyncio.run(tuner(PretendNode(), root).apply(PLAN))
    assert (root / SWAP_FILE[1:]).read_text() == "precious"


def test_a_directory_in_the_way_stops_before_any_change_to_it(root: Path) -> None:
    (root / SYSCTL_FILE[1:]).mkdir()
    with pytest.raises(NodeError, match="neither a file nor a link"):
        asyncio.run(tuner(PretendNode(), root).apply(PLAN))
    assert (root / SYSCTL_FILE[1:]).is_dir()


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"[]", b'{"version": 9, "entries": []}', b'{"version": 1, "entries": [1]}']
)
def test_a_journal_that_is_none_is_one_clear_error(root: Path, raw: bytes) -> None:
    (root / "var/lib/glmspark").mkdir()
    (root / JOURNAL[1:]).write_bytes(raw)
    for work in (tuner(PretendNode(), root).restore, lambda: tuner(PretendNode(), root).apply(PLAN)):
        with pytest.raises(NodeError, match="cannot be understood"):
            asyncio.run(work())  # type: ignore[arg-type]
    assert (root / JOURNAL[1:]).read_bytes() == raw


def test_a_journal_is_read_back() -> None:
    journal = Journal(
        [
            Entry(
                "path", "/a", PathState("file", b"\xff", 0o640, 5, 6), PathState("link", target="/dev/null")
            ),
            Entry("path", "/b", PathState("absent"), PathState("file", b"x")),
            Entry("sysctl", "vm.swappiness", 60, 10),
            Entry("dir", "/c"),
        ]
    )
    assert Journal.load(journal.dump()) == journal
