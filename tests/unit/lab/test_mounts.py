from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.lab import mounts

MOUNTINFO = """\
22 28 0:20 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 28 0:25 / /data\\040one rw,nosuid,noatime shared:2 master:1 - xfs /dev/vdb rw
90 80 254:0 / /lab/root rw,relatime - ext4 /dev/vda rw,discard
91 90 0:25 / /lab/root/data\\040one rw,nosuid,noatime - xfs /dev/vdb rw
92 90 0:20 / /lab/root/proc rw,nosuid,nodev,noexec,relatime - proc proc rw
93 90 0:26 / /lab/root/run rw,nosuid,nodev - tmpfs tmpfs rw
94 90 0:27 / /lab/root/home/alice rw,relatime - ext4 /dev/vdc rw
95 90 7:1 / /lab/root/snap/core ro,nodev,relatime - squashfs /dev/loop1 ro
96 90 0:30 / /lab/root/misc rw,relatime - autofs systemd-1 rw
97 90 0:31 / /lab/rootless rw,relatime - ext4 /dev/vdd rw
"""


def test_the_machine_s_file_systems_become_read_only_and_keep_their_flags():
    commands = mounts.make_read_only("/lab/root", mounts.parse_mountinfo(MOUNTINFO))
    assert commands == [
        ["mount", "-o", "remount,bind,ro,relatime", "/lab/root"],
        ["mount", "-o", "remount,bind,ro,nosuid,noatime", "/lab/root/data one"],
    ]


@given(st.text(st.characters(min_codepoint=1, max_codepoint=255), min_size=1, max_size=30))
def test_mount_points_with_odd_names(name):
    name = name.replace("/", "x")
    escaped = "".join(f"\\{ord(char):03o}" if char in " \t\n\\" else char for char in name)
    (mount,) = mounts.parse_mountinfo(f"1 2 3:4 / /m/{escaped} rw - ext4 /dev/x rw\n")
    assert str(mount.point) == str(PurePosixPath(f"/m/{name}"))


@pytest.mark.parametrize("text", ["nonsense", "1 2 3:4 / /m rw ext4 /dev/x rw", "1 2 - ext4 x rw"])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match="mountinfo"):
        mounts.parse_mountinfo(text)


def test_a_node_has_its_own_of_what_a_machine_has():
    commands = mounts.own_mounts("/r", "/own", ["/root/.venv"], ["/proc/sys/kernel"])
    targets = [argv[-1] for argv in commands if argv[0] == "mount"]
    for name in ("run", "dev/shm", "dev/pts", "sys", "etc", "var", "home", "root", "tmp", "proc/sys/vm"):
        assert f"/r/{name}" in targets
    # What is exposed must be mounted after what would hide it.
    assert targets.index("/r/root/.venv") > targets.index("/r/root")
    assert ["mount", "-o", "remount,bind,ro", "/r/root/.venv"] in commands
    assert ["mount", "-o", "remount,bind,ro", "/r/proc/sys/kernel"] in commands
    # The node's own files are never taken from the machine's place of the same name.
    assert all(
        argv[-2].startswith("/own/") for argv in commands if argv[-1] in ("/r/etc", "/r/var", "/r/home")
    )


def test_the_control_groups_stay_below_the_new_sys():
    commands = mounts.own_mounts("/r", "/own", [], [])
    words = [" ".join(argv) for argv in commands]
    fresh = words.index("mount -t sysfs -o ro,nosuid,nodev,noexec sysfs /r/run/lab/sys")
    groups = words.index("mount --rbind /r/sys/fs/cgroup /r/run/lab/sys/fs/cgroup")
    moved = words.index("mount --move /r/run/lab/sys /r/sys")
    assert fresh < groups < moved


def test_the_machine_s_tree_is_dropped():
    pivot, umount, _ = mounts.enter_tree("/r")
    assert pivot == ["pivot_root", "/r", "/r/run/lab/machine"]
    assert umount == ["umount", "--lazy", "/run/lab/machine"]


def test_hidden_and_minimal_paths():
    assert mounts.is_hidden(PurePosixPath("/root/.pyenv/versions/3.11"))
    assert mounts.is_hidden(PurePosixPath("/home"))
    assert not mounts.is_hidden(PurePosixPath("/homes/x"))
    assert not mounts.is_hidden(PurePosixPath("/opt/venv"))
    paths = [PurePosixPath(text) for text in ("/a/b/c", "/a/b", "/d", "/a/bc", "/d")]
    assert [str(path) for path in mounts.minimal(paths)] == ["/a/b", "/a/bc", "/d"]
