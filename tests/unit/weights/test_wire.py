"""The data path between two ends of this process, with and without what only some Pythons have."""

import os
import socket
import threading

import pytest

from glmspark.weights.relay import wire
from tests.unit.weights.relays import new_key

SIZES = (1, 40, 5000, wire.PIECE - 1, wire.PIECE, wire.PIECE + 1, 3 * wire.PIECE + 77)


def pair():
    """Two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        return near, server.accept()[0]


def ends(key, monkeypatch, able=(True, True)):
    """Both ends of a connection; able: whether client and server have AES-GCM."""
    near, far = pair()
    real = wire.aes_gcm
    names = {"server": able[1], "client": able[0]}
    monkeypatch.setattr(wire, "aes_gcm", lambda: real() if names[threading.current_thread().name] else None)
    found = {}

    def make(name, plain):
        found[name] = wire.Wire(plain, key, server=name == "server")

    threads = [
        threading.Thread(target=make, args=(name, plain), name=name)
        for name, plain in (("client", near), ("server", far))
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return found["client"], found["server"]


def sealed(one):
    return type(one._link).__name__ == "_Sealed"


@pytest.mark.parametrize("able", [(True, True), (True, False), (False, True), (False, False)])
def test_what_is_sent_comes(monkeypatch, able):
    client, server = ends(new_key(False), monkeypatch, able)
    assert sealed(client) is sealed(server) is all(able)
    data = [os.urandom(size) for size in SIZES]
    for giver, taker in ((client, server), (server, client)):
        sender = threading.Thread(target=lambda giver=giver: [giver.send(one) for one in data])
        sender.start()
        # In pieces that are not those it was sent in.
        joined = b"".join(data)
        came = bytearray()
        for step in (3, wire.PIECE, 999, 2 * wire.PIECE, len(joined)):
            came += taker.receive(min(step, len(joined) - len(came)))
        sender.join()
        assert bytes(came) == joined
        giver.send_json({"a": 1})
        assert taker.receive_json() == {"a": 1}
    client.close()
    server.close()


@pytest.mark.parametrize("what", ["changed", "left out", "repeated", "cut off", "length"])
def test_records_are_what_was_sent_in_their_order(monkeypatch, what):
    client, server = ends(new_key(False), monkeypatch)
    near, far = client.socket, server.socket
    client.send(b"first")
    client.send(b"second")
    raw = far.recv(1000)
    size = 4 + 5 + 16
    assert len(raw) == 2 * size + 1
    assert b"first" not in raw
    changed = {
        "changed": raw[:6] + bytes([raw[6] ^ 1]) + raw[7:],
        "left out": raw[size:],
        "repeated": raw[:size] + raw[:size],
        "cut off": raw[: size - 1],
        "length": b"\xff\xff\xff\x7f" + raw[4:],
    }[what]
    injected, other = pair()
    injected.sendall(changed)
    injected.close()
    server._link._socket = other
    if what == "repeated":
        assert bytes(server.receive(5)) == b"first"
    with pytest.raises(ConnectionError):
        server.receive(5)
    for one in (near, far, other):
        one.close()


@pytest.mark.parametrize("what", ["as it was", "changed", "left out", "repeated", "reflected"])
def test_on_a_trusted_fabric_messages_are_those_that_were_said(monkeypatch, what):
    """A bit that turns over in a request or in a chunk's number would put right bytes elsewhere."""
    client, server = ends(new_key(True), monkeypatch)
    near, far = client.socket, server.socket
    client.send_json({"file": "a-00001"})
    client.say(b"chunk 7")
    raw = far.recv(1000)
    size = 4 + len('{"file": "a-00001"}') + 32
    assert b"chunk 7" in raw  # not encrypted
    injected, other = pair()
    injected.sendall(
        {
            "changed": raw.replace(b"a-00001", b"a-00003"),
            "left out": raw[size:] + bytes(100),
            "repeated": raw[:size] + raw[:size],
        }.get(what, raw)
    )
    injected.close()
    taker = client if what == "reflected" else server
    taker._link._socket = other
    if what in ("as it was", "repeated"):
        assert taker.receive_json() == {"file": "a-00001"}
    if what == "as it was":
        assert bytes(taker.hear(7)) == b"chunk 7"
    else:
        with pytest.raises(ConnectionError):
            taker.receive_json()
    for one in (near, far, other):
        one.close()
