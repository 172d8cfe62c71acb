"""Paths between nodes: which way packets would go, whether they arrive, and how large they may be."""

from __future__ import annotations

import json
from dataclasses import dataclass

from glmspark.nodes.facts import Fact

# Headers of IPv4 and ICMP, which `ping -s` does not count.
_HEADERS = 28


@dataclass(frozen=True)
class Way:
    """The route packets would take. gateway: None for a neighbour on the same network."""

    interface: str
    gateway: str | None


def parse_way(text: str) -> Way:
    """The way from `ip -json route get`. Raises ValueError for anything else."""
    try:
        (row,) = json.loads(text)
        return Way(str(row["dev"]), row.get("gateway"))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"ip named no route: {error}") from None


def parse_reached(text: str) -> str:
    """'' where the other side answered, be it with a refusal; else what stood in the way."""
    said = text.strip()
    if said == "connected" or "Connection refused" in said:
        return ""
    last = said.splitlines()[-1] if said else "no answer"
    return last.rpartition(": ")[2] or last


def parse_ping(text: str) -> bool:
    """Whether a packet came back. Raises ValueError where ping says nothing of packets."""
    if " packets transmitted" not in text:
        raise ValueError(f"ping printed {text.strip()[:100]!r}")
    return ", 0 received" not in text


# bash alone can open a connection without a further program. A refusal is an answer too: it arrived.
_CONNECT = 'if timeout 3 bash -c \'exec 3<>"/dev/tcp/$1/$2"\' x "$1" "$2" 2>&1; then echo connected; fi'


def way(source: str, destination: str) -> Fact[Way]:
    """The fact "how packets from one of our addresses to another node's would go"."""
    command = ("ip", "-json", "route", "get", destination, "from", source)
    return Fact(f"way from {source} to {destination}", command, parse_way)


def reached(destination: str, port: int = 22) -> Fact[str]:
    """The fact "whether an address of another node answers"."""
    command = ("bash", "-c", _CONNECT, "connect", destination, str(port))
    return Fact(f"answer of {destination}", command, parse_reached)


def carries(source: str, destination: str, mtu: int) -> Fact[bool]:
    """The fact "whether packets of that MTU arrive whole"; mtu: bytes."""
    size = str(mtu - _HEADERS)
    command = ("ping", "-n", "-q", "-c", "2", "-i", "0.2", "-W", "1", "-M", "do", "-s", size, "-I", source)
    return Fact(
        f"packets of {mtu} from {source} to {destination}", (*command, destination), parse_ping, partial=(1,)
    )
