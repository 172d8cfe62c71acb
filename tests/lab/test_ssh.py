"""The SSH transport against a real sshd."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from glmspark.nodes.blocking import BlockingNode
from glmspark.nodes.facts.host import HOSTNAME
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.node import LocalNode, Node
from glmspark.nodes.processes import is_alive, send, wait_gone
from glmspark.nodes.ssh import Address, connect
from glmspark.nodes.transport import NodeError, gather
from tests.lab.sshd import Sshd, free_port, make_key, running

T = TypeVar("T")


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running(tmp_path_factory.mktemp("sshd")) as one:
        yield one


def on(address: Address, work: Callable[[Node], Awaitable[T]]) -> T:
    async def go() -> T:
        node = await connect(address)
        try:
            return await work(node)
        finally:
            await node.close()

    return asyncio.run(go())


def refused(address: Address) -> NodeError:
    async def go() -> None:
        await (await connect(address)).close()

    with pytest.raises(NodeError) as caught:
        asyncio.run(go())
    return caught.value


ODD = ["", "a b", "'", '"', "$HOME", "`id`", "\\", "\n", "*", "!x", "~", "-n", "é", "a\tb", "#", ";true"]


def test_arguments_input_and_environment_arrive_as_they_are(sshd: Sshd) -> None:
    async def work(node: Node) -> None:
        done = await node.run(["printf", "%s\\0", *ODD])
        assert done.stdout.split("\0")[:-1] == ODD
        done = await node.run(
            ["sh", "-c", 'cat; printf %s "$ODD"; echo no >&2; exit 7'], input=b"in ", env={"ODD": "$x '"}
        )
        assert (done.code, done.stdout, done.stderr) == (7, "in $x '", "no\n")

    on(sshd.address(), work)


def test_input_ends_without_any(sshd: Sshd) -> None:
    async def work(node: Node) -> str:
        return (await node.run(["cat"], timeout=5)).stdout

    assert on(sshd.address(), work) == ""


def test_much_output_comes_whole(sshd: Sshd) -> None:
    async def work(node: Node) -> str:
        return (await node.run(["seq", "300000"])).stdout

    assert on(sshd.address(), work) == "".join(f"{i}\n" for i in range(1, 300001))


def test_a_command_that_hangs_is_ended_on_the_node_too(sshd: Sshd, tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        await node.run(["sh", "-c", 'echo $$ > "$1"; exec sleep 60', "x", str(tmp_path / "pid")], timeout=0.5)

    begin = time.monotonic()
    with pytest.raises(NodeError, match=r"sh did not end within 0\.5 s") as caught:
        on(sshd.address(name="spark1"), work)
    assert time.monotonic() - begin < 5
    assert caught.value.host == "spark1"
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_program_that_is_not_there(sshd: Sshd) -> None:
    async def work(node: Node) -> None:
        await node.run(["no-such-program"])

    with pytest.raises(NodeError, match="cannot run no-such-program: no such program"):
        on(sshd.address(), work)


def test_a_failing_step_names_host_step_command_and_the_last_lines(sshd: Sshd) -> None:
    async def work(node: Node) -> None:
        await node.must(["sh", "-c", "echo first >&2; echo last >&2; exit 3"], "make ready")

    with pytest.raises(NodeError) as caught:
        on(sshd.address(name="spark2"), work)
    error = caught.value
    assert (error.host, error.step, error.seen) == ("spark2", "make ready", "first\nlast")
    assert "left with 3" in error.message
    assert error.next


def test_an_argument_with_nul_is_refused_before_anything_runs(sshd: Sshd) -> None:
    async def work(node: Node) -> None:
        await node.run(["echo", "a\0b"])

    with pytest.raises(NodeError, match="NUL"):
        on(sshd.address(), work)


@pytest.mark.parametrize("local", [True, False])
def test_small_files_are_put_whole_and_got_back(sshd: Sshd, tmp_path: Path, local: bool) -> None:
    content = bytes(range(256)) * 200
    path = tmp_path / "a 'file' of $HOME"

    async def work(node: Node) -> None:
        assert await node.get(str(path)) is None
        await node.put(content, str(path), mode=0o600)
        assert await node.get(str(path)) == content
        assert path.stat().st_mode & 0o7777 == 0o600
        await node.put(b"", str(path))
        assert await node.get(str(path)) == b""
        with pytest.raises(NodeError):
            await node.put(b"x", str(tmp_path / "nowhere" / "file"))

    if local:
        asyncio.run(work(LocalNode()))
    else:
        on(sshd.address(), work)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_what_is_spawned_outlives_the_connection(sshd: Sshd, tmp_path: Path) -> None:
    async def work(node: Node):
        return await node.spawn(
            ["sh", "-c", 'echo "$GREETING"; sleep 60'],
            log=str(tmp_path / "log"),
            cwd=str(tmp_path),
            env={"GREETING": "hello"},
        )

    identity = on(sshd.address(), work)
    try:
        assert is_alive(identity)
        for _ in range(100):
            if (tmp_path / "log").read_text() == "hello\n":
                break
            time.sleep(0.02)
        assert (tmp_path / "log").read_text() == "hello\n"
        sid = int(Path(f"/proc/{identity.pid}/stat").read_text().rpartition(")")[2].split()[3])
        assert sid == identity.pid
    finally:
        os.killpg(identity.pid, signal.SIGKILL)
        send(identity, signal.SIGKILL)
        assert wait_gone([identity], 5) == []


def test_an_unknown_host_key_is_one_clear_error(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "known_hosts").write_text("")
    error = refused(sshd.address(known_hosts=tmp_path / "known_hosts"))
    public = sshd.folder / "host_key.pub"
    fingerprint = subprocess.run(
        ["ssh-keygen", "-lf", public], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    assert "not known yet" in error.message
    assert fingerprint in (error.seen or "")
    assert f"ssh -F {sshd.folder}/ssh_config -p {sshd.port}" in (error.next or "")


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa"])
def test_a_changed_host_key_is_told_apart(sshd: Sshd, tmp_path: Path, kind: str) -> None:
    public = make_key(tmp_path / "other", kind).split()
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{sshd.port} {public[0]} {public[1]}\n")
    error = refused(sshd.address(known_hosts=tmp_path / "known_hosts"))
    assert "known_hosts" in error.message
    assert f"ssh-keygen -R '[127.0.0.1]:{sshd.port}'" in (error.next or "")


def test_host_keys_are_checked_even_where_the_settings_name_no_file(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host *\n  UserKnownHostsFile none\n  StrictHostKeyChecking no\n")
    error = refused(sshd.address(known_hosts=None, config=tmp_path / "config"))
    assert "not known yet" in error.message


def test_ssh_config_is_honoured(sshd: Sshd, tmp_path: Path) -> None:
    config = tmp_path / "config"
    address = sshd.address()
    config.write_text(
        f"Host spark-a\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User {address.user}\n"
        f"  IdentityFile {sshd.key}\n  UserKnownHostsFile {sshd.known_hosts}\n"
    )

    async def work(node: Node) -> str:
        return (await node.run(["echo", "here"])).stdout

    assert on(Address("spark-a", config=config), work) == "here\n"


def test_no_key_of_ours_is_accepted(sshd: Sshd, tmp_path: Path) -> None:
    make_key(tmp_path / "stranger")
    error = refused(sshd.address(keys=(tmp_path / "stranger",)))
    assert "accepts none of our keys" in error.message
    assert "ssh-copy-id" in (error.next or "")


def test_a_key_file_that_is_not_there_is_named(sshd: Sshd, tmp_path: Path) -> None:
    error = refused(sshd.address(keys=(tmp_path / "none",)))
    assert f"cannot read {tmp_path / 'none'}" in error.message


def test_nothing_listens() -> None:
    error = refused(Address("127.0.0.1", port=free_port(), name="spark9"))
    assert "nothing listens for SSH" in error.message
    assert error.host == "spark9"


def test_an_unknown_name() -> None:
    assert "is not known" in refused(Address("no-such-host.invalid")).message


def test_what_listens_is_not_sshd(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    """A starved node completes TCP handshakes while sshd says nothing."""
    monkeypatch.setattr("glmspark.nodes.ssh.LOGIN_SECONDS", 0.5)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        error = refused(sshd.address(port=mute.getsockname()[1]))
    assert "did not answer" in error.message
    assert "out of memory" in (error.next or "")


def test_a_connection_cut_while_a_command_runs(tmp_path: Path) -> None:
    with running(tmp_path / "sshd") as one:

        async def work(node: Node) -> None:
            task = asyncio.ensure_future(node.run(["sleep", "30"]))
            await asyncio.sleep(0.3)
            children = Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read_text().split()
            assert children
            for child in children:
                subprocess.run(["kill", "-9", child], check=True)
            await task

        begin = time.monotonic()
        with pytest.raises(NodeError, match="connection was lost"):
            on(one.address(), work)
        assert time.monotonic() - begin < 10


def test_nodes_are_worked_on_together_and_a_lost_one_stops_nobody(sshd: Sshd) -> None:
    addresses: dict[str, Address | None] = {f"spark{i}": sshd.address(name=f"spark{i}") for i in range(8)}
    addresses["dead"] = sshd.address(name="dead", port=free_port())
    addresses["here"] = None

    async def work(node: Node) -> str:
        if node.host == "spark3":
            await node.must(["false"], "fail")
        return (await node.run(["sh", "-c", 'sleep 1; echo "$1"', "x", node.host])).stdout.strip()

    async def go() -> tuple[dict[str, str | NodeError], set[str], float]:
        async with Fleet(addresses) as fleet:
            begin = time.monotonic()
            return await fleet.each(work), set(fleet.lost), time.monotonic() - begin

    results, lost, seconds = asyncio.run(go())
    assert lost == {"dead"}
    assert isinstance(results.pop("spark3"), NodeError)
    assert results == {name: name for name in [*(f"spark{i}" for i in range(8) if i != 3), "here"]}
    assert seconds < 4, "nine seconds of sleep at once take about one"


def test_code_that_waits_has_the_same_node(sshd: Sshd, tmp_path: Path) -> None:
    with BlockingNode(sshd.address(name="spark1")) as node:
        assert node.host == "spark1"
        assert gather(node, HOSTNAME) == socket.gethostname()
        assert node.run(["cat"], input=b"x", env={"A": "b"}).stdout == "x"
        node.put(b"data", str(tmp_path / "file"))
        assert node.get(str(tmp_path / "file")) == b"data"
        identity = node.spawn(["true"], log=str(tmp_path / "log"))
        assert wait_gone([identity], 5) == []
        with pytest.raises(NodeError, match="did not end"):
            node.run(["sleep", "9"], timeout=0.2)
    node.close()
    with BlockingNode(None) as here:
        assert here.run(["echo", "here"]).stdout == "here\n"
    with pytest.raises(NodeError, match="nothing listens"):
        BlockingNode(Address("127.0.0.1", port=free_port()))
