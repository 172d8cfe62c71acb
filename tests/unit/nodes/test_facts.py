"""Facts: parsers on recorded and made-up output, commands as lists, and once each on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.nodes.facts import Fact
from glmspark.nodes.facts.cpu import CORES, parse_allowed_cores, parse_cpu_list
from glmspark.nodes.facts.host import BOOT_ID, HOSTNAME, parse_word
from glmspark.nodes.facts.memory import MEMORY, Memory, memory_under, parse_meminfo
from glmspark.nodes.facts.ports import (
    LISTENERS,
    Listener,
    Owner,
    command_line,
    parse_command_line,
    parse_listeners,
    parse_socket_owners,
    socket_owners,
)
from glmspark.nodes.transport import Local, NodeError, gather

MEMINFO = """\
MemTotal:       24649492 kB
MemFree:        17214820 kB
MemAvailable:   20001232 kB
Buffers:           65104 kB
SwapTotal:             0 kB
SwapFree:              0 kB
HugePages_Total:       0
"""

GIB = 2**30
SOCKETS = (Path(__file__).with_name("recorded") / "socket-table.txt").read_text()


def test_memory() -> None:
    kib = 1024
    assert parse_meminfo(MEMINFO) == Memory(24649492 * kib, 17214820 * kib, 20001232 * kib, 0, 0)


@pytest.mark.parametrize(
    ("groups", "total", "available", "limit"),
    [
        ("Group: max 1000 500\n", None, None, None),
        ("Group: 9223372036854771712 1000 500\n", None, None, None),
        ("Group: 8589934592 1073741824 0\n", 8 * GIB, 7 * GIB, 8 * GIB),
        ("Group: 8589934592 1073741824 1073741824\n", 8 * GIB, 8 * GIB, 8 * GIB),
        ("Group: 8589934592 0 0\nGroup: 4294967296 5368709120 0\n", 4 * GIB, 0, 4 * GIB),
        ("Group: 8589934592\nGroup: a b c\n", None, None, None),
    ],
)
def test_memory_within_control_groups(
    groups: str, total: int | None, available: int | None, limit: int | None
) -> None:
    whole, found = parse_meminfo(MEMINFO), parse_meminfo(MEMINFO + groups)
    assert found.total == (whole.total if total is None else total)
    assert found.available == (whole.available if available is None else available)
    assert found.limit == limit


@pytest.mark.parametrize(
    ("version", "own", "files"),
    [
        (2, "0::/user/app\n", {"memory.max": "max", "memory.current": "7", "row": "inactive_file 3"}),
        (
            1,
            "9:name=systemd:/\n5:devices:/x\n4:memory:/user/app\n0::/\n",
            {"memory.limit_in_bytes": "max", "memory.usage_in_bytes": "7", "row": "total_inactive_file 3"},
        ),
    ],
)
def test_limits_of_all_groups_above_are_read(
    tmp_path: Path, version: int, own: str, files: dict[str, str]
) -> None:
    """The fact's own command on made-up trees: the outer group has the limit, the inner one has none."""
    root = tmp_path / "memory" if version == 1 else tmp_path
    limit = next(iter(files))
    for group, most in (("user", "2147483648"), ("user/app", files[limit])):
        place = root / group
        place.mkdir(parents=True)
        for name, value in files.items():
            text = f"anon 1\n{value}\n" if name == "row" else f"{most if name == limit else value}\n"
            (place / ("memory.stat" if name == "row" else name)).write_text(text)
    (tmp_path / "own").write_text(own)
    done = Local().run(memory_under(str(tmp_path), str(tmp_path / "own")))
    assert done.code == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("Group")]
    assert rows == ["Group: max 7 3", "Group: 2147483648 7 3"]
    assert parse_meminfo(done.stdout).limit == 2 * GIB


def test_memory_without_a_needed_row_is_an_error() -> None:
    with pytest.raises(ValueError, match="no row 'MemAvailable'"):
        parse_meminfo("MemTotal: 1 kB\nMemFree: 1 kB\n")


@given(st.text())
def test_memory_of_any_text_is_read_or_refused(text: str) -> None:
    _read_or_refuse(parse_meminfo, text)


@given(st.sets(st.integers(0, 300), min_size=1))
def test_core_lists_are_read_back(cores: set[int]) -> None:
    assert parse_cpu_list(",".join(map(str, sorted(cores)))) == tuple(sorted(cores))


@pytest.mark.parametrize(
    ("text", "cores"), [("0\n", (0,)), ("0-3", (0, 1, 2, 3)), ("0-1,8,10-11", (0, 1, 8, 10, 11))]
)
def test_core_ranges(text: str, cores: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cores


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-1", "0,,1", "0-99999999"])
def test_what_is_no_core_list(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        parse_cpu_list(text)


def test_allowed_cores_need_their_row() -> None:
    assert parse_allowed_cores("Name:\tcat\nCpus_allowed:\t3\nCpus_allowed_list:\t0-1\n") == (0, 1)
    with pytest.raises(ValueError, match="Cpus_allowed_list"):
        parse_allowed_cores("Name:\tcat\n")


def test_one_word() -> None:
    assert parse_word("spark1\n") == "spark1"
    with pytest.raises(ValueError, match="one word"):
        parse_word("two words\n")


def test_listeners() -> None:
    assert parse_listeners(SOCKETS) == (
        Listener("127.0.0.1", 8000, 1000, 41234),
        Listener("0.0.0.0", 22, 0, 2001),
        Listener("::", 8080, 0, 5005),
        Listener("::1", 631, 0, 5006),
    )


@pytest.mark.parametrize("text", ["nonsense", "   0: 0100007F:1F40", "   0: 01:1F40 0:0 0A a b c 0 0 1 1"])
def test_what_is_no_socket_table(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a|not an"):
        parse_listeners(text)


@given(st.text())
def test_any_socket_table_is_read_or_refused(text: str) -> None:
    _read_or_refuse(parse_listeners, text)


@pytest.mark.parametrize(
    ("mine", "wanted", "in_the_way"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "198.18.0.1", False),
        ("127.0.0.1", "0.0.0.0", True),
        ("0.0.0.0", "198.18.0.1", True),
        ("::", "127.0.0.1", True),
        ("::1", "127.0.0.1", False),
        ("127.0.0.1", "::", True),
        ("127.0.0.1", "::1", False),
        ("::ffff:127.0.0.1", "127.0.0.1", True),
        ("::", "::1", True),
    ],
)
def test_which_listener_is_in_the_way(mine: str, wanted: str, in_the_way: bool) -> None:
    assert Listener(mine, 8000, 0, 1).covers(wanted) is in_the_way


def test_socket_owners() -> None:
    text = "/proc/12/fd/7 socket:[41234]\n/proc/12/fd/9 socket:[41234]\n/proc/13/fd/1 /dev/null\n"
    assert parse_socket_owners(text) == (Owner(12, 41234),)


def test_commands_are_lists() -> None:
    assert LISTENERS.command == ("cat", "/proc/net/tcp", "/proc/net/tcp6")
    assert socket_owners([7, 8]).command == (
        *("find", "/proc", "-maxdepth", "3", "-path", "/proc/[0-9]*/fd/*"),
        *("(", "-lname", r"socket:\[7\]", "-o", "-lname", r"socket:\[8\]", ")"),
        *("-printf", r"%p %l\n"),
    )
    assert command_line(5).command == ("cat", "/proc/5/cmdline")
    with pytest.raises(ValueError, match="no socket inode"):
        socket_owners([])


def test_a_command_line_is_shown_with_blanks() -> None:
    assert parse_command_line("python3\0-m\0http.server\0") == "python3 -m http.server"


def test_facts_of_this_machine() -> None:
    here = Local()
    memory = gather(here, MEMORY)
    assert 0 < memory.available <= memory.total
    assert set(gather(here, CORES)) == os.sched_getaffinity(0)
    assert gather(here, HOSTNAME) == socket.gethostname()
    assert len(gather(here, BOOT_ID)) == 36


def test_the_command_line_of_a_process() -> None:
    argv = [sys.executable, "-c", "input()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as child:
        seen = gather(Local(), command_line(child.pid))
        child.communicate()
    assert sys.executable.rpartition("/")[2] in seen
    assert "input()" in seen


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_who_listens_on_this_machine(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as sock:
        sock.bind((address, 0))
        sock.listen()
        port = sock.getsockname()[1]
        found = [one for one in gather(Local(), LISTENERS) if one.port == port]
        assert [(one.address, one.uid) for one in found] == [(address, os.getuid())]
        owners = gather(Local(), socket_owners([found[0].inode]))
        assert Owner(os.getpid(), found[0].inode) in owners


def test_an_error_of_a_fact_names_host_command_and_output() -> None:
    broken: Fact[str] = Fact("nothing", ("sh", "-c", "echo no such thing >&2; exit 3"), parse_word)
    with pytest.raises(NodeError, match="cannot read nothing: the command left with 3") as caught:
        gather(Local(), broken)
    assert (caught.value.host, caught.value.seen) == ("this machine", "no such thing")
    odd: Fact[str] = Fact("one word", ("echo", "two", "words"), parse_word)
    with pytest.raises(NodeError, match="cannot understand one word") as caught:
        gather(Local(), odd)
    assert caught.value.seen == "two words\n"


def test_a_command_that_is_not_there_or_hangs_is_an_error() -> None:
    with pytest.raises(NodeError, match="cannot run /no/such"):
        Local().run(["/no/such"])
    with pytest.raises(NodeError, match=r"did not end within 0.1 s"):
        Local().run(["sleep", "5"], timeout=0.1)


def _read_or_refuse(parse: Callable[[str], object], text: str) -> None:
    try:
        parse(text)
    except ValueError:
        return
