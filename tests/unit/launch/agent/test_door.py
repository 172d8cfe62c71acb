"""The door: 503 in OpenAI's form while no engine serves, and its going once one does."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import httpx
import pytest

from glmspark.launch.node_agent import door as doors
from glmspark.launch.node_agent.door import Door, listeners, refusal
from glmspark.launch.node_agent.spec import Api
from tests.unit.launch.agent.test_peers import free_port


def door(port: int) -> Door:
    return Door(Api("127.0.0.1", "127.0.0.1", port, "m"), lambda: "it restarts", lambda: 12.4)


def test_clients_get_503_with_retry_after_in_openai_s_form() -> None:
    import openai  # here: half a second of a core for each process that collects tests

    async def run() -> None:
        port = free_port()
        one = door(port)
        await one.open()
        base = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(trust_env=False) as client:
            for method, path, body in (
                ("GET", "/v1/models", b""),
                ("POST", "/v1/completions", b"x" * 300_000),
                ("HEAD", "/health", b""),
            ):
                answer = await client.request(method, base + path, content=body)
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "12")
                if method != "HEAD":
                    assert answer.json()["error"]["message"] == "it restarts"
        api = openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="k", max_retries=0)
        with pytest.raises(openai.InternalServerError, match="it restarts") as caught:
            await api.models.list()
        assert caught.value.status_code == 503
        await api.close()
        assert one.is_open
        await one.close()
        assert not one.is_open

    asyncio.run(run())


def test_more_clients_than_can_be_listened_to_are_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "_AT_ONCE", 2)

    async def run() -> None:
        port = free_port()
        one = door(port)
        await one.open()
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        said = await asyncio.wait_for(reader.read(), 3.0)
        assert said.startswith(b"HTTP/1.1 503 ")
        for _, client in [*silent, (reader, writer)]:
            client.close()
        await one.close()

    asyncio.run(run())


def test_an_engine_takes_the_port_over_without_a_gap() -> None:
    async def run() -> None:
        port = free_port()
        one = door(port)
        await one.open()
        assert not one.engine_listens()
        engine = socket.socket()
        engine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        engine.bind(("127.0.0.1", port))  # as vLLM does, long before it serves
        assert not one.engine_listens()
        engine.listen()
        assert one.engine_listens()
        await one.close()
        assert one.engine_listens()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        engine.accept()[0].close()
        writer.close()
        engine.close()

    asyncio.run(run())


def test_an_engine_that_stands_still_gets_nobody_any_more() -> None:
    async def run() -> None:
        port = free_port()
        with socket.socket() as engine:
            engine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            engine.bind(("127.0.0.1", port))
            engine.listen()
            one = door(port)
            await one.open()
            async with httpx.AsyncClient(trust_env=False) as client:
                for _ in range(20):
                    assert (await client.get(f"http://127.0.0.1:{port}/health")).status_code == 503
            engine.close()
            async with httpx.AsyncClient(trust_env=False) as client:
                assert (await client.get(f"http://127.0.0.1:{port}/health")).status_code == 503
            await one.close()

    asyncio.run(run())


def test_a_port_that_cannot_be_had_ends_nothing() -> None:
    async def run() -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            one = door(other.getsockname()[1])
            await one.open()
            assert not one.is_open
            await one.close()

    asyncio.run(run())


def test_listeners_are_those_of_the_port_and_both_families(tmp_path: Path) -> None:
    head = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    )
    (tmp_path / "tcp").write_text(
        head
        + "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001  0 51 1 0\n"
        + "   1: 0100007F:1F41 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001  0 52 1 0\n"
        + "   2: 0100007F:1F40 0100007F:9999 01 00000000:00000000 00:00000000 00000000  1001  0 53 1 0\n"
    )
    (tmp_path / "tcp6").write_text(
        head + f"   0: {'0' * 32}:1F40 {'0' * 32}:0000 0A 0:0 0:0 0  1001        0 54 1 0\n"
    )
    assert listeners(8000, tmp_path) == {"51", "54"}
    assert listeners(8000, tmp_path / "none") == set()
    for address, found in (("127.0.0.1", {"51"}), ("10.0.0.1", set()), ("::", {"54"}), ("::1", set())):
        assert listeners(8000, tmp_path, address=address) == found
    assert listeners(8000, tmp_path, address="a-name") == {"51", "54"}


def test_a_refusal_is_whole() -> None:
    head, _, body = refusal("why", 0.2).partition(b"\r\n\r\n")
    assert b"Retry-After: 1\r\n" in head
    assert f"Content-Length: {len(body)}".encode() in head
    assert json.loads(body)["error"]["code"] == 503
