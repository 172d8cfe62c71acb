"""Interfaces of a node: addresses, MTU, link, speed, what hardware is behind them; and its routes."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass
from typing import Any

from glmspark.nodes.facts import Fact

IPv4 = ipaddress.IPv4Interface


@dataclass(frozen=True)
class Interface:
    """One interface. addresses: IPv4 with prefix length. up: administratively up and with carrier."""

    name: str
    mac: str
    mtu: int
    up: bool
    addresses: tuple[IPv4, ...]
    kind: str = ""
    """'' for hardware; else what made it: veth, bridge, vlan, bond, wireguard …"""
    loopback: bool = False


@dataclass(frozen=True)
class Route:
    """A route of the main table. target: a network; default is 0.0.0.0/0."""

    target: ipaddress.IPv4Network
    interface: str
    gateway: str | None = None
    metric: int = 0

    @property
    def default(self) -> bool:
        """Whether it is a default route."""
        return self.target.prefixlen == 0


@dataclass(frozen=True)
class Link:
    """What /sys/class/net tells of an interface. speed: Mbit/s, None where the driver does not say.

    device: the bus address of its hardware (0000:01:00.0), '' for virtual ones.
    """

    name: str
    speed: int | None
    wireless: bool
    device: str


def parse_interfaces(text: str) -> tuple[Interface, ...]:
    """Interfaces from `ip -json -details address`. Raises ValueError for anything else."""
    found = []
    for row in _rows(text):
        if not row.get("ifname"):
            continue
        flags = row.get("flags", [])
        try:
            addresses = tuple(
                IPv4(f"{one['local']}/{one['prefixlen']}")
                for one in row.get("addr_info", [])
                if one.get("family") == "inet" and "local" in one
            )
            found.append(
                Interface(
                    name=row["ifname"],
                    mac=row.get("address", ""),
                    mtu=int(row["mtu"]),
                    up="UP" in flags and "LOWER_UP" in flags,
                    addresses=addresses,
                    kind=(row.get("linkinfo") or {}).get("info_kind", ""),
                    loopback="LOOPBACK" in flags,
                )
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"an interface lacks {error}") from None
    return tuple(found)


def parse_routes(text: str) -> tuple[Route, ...]:
    """IPv4 routes from `ip -json -4 route`. Raises ValueError for anything else."""
    found = []
    for row in _rows(text):
        target, interface = row.get("dst"), row.get("dev")
        if not target or not interface or row.get("type", "unicast") != "unicast":
            continue
        network = ipaddress.IPv4Network("0.0.0.0/0" if target == "default" else target, strict=False)
        found.append(Route(network, interface, row.get("gateway"), int(row.get("metric", 0))))
    return tuple(found)


def parse_links(text: str) -> tuple[Link, ...]:
    """Links from lines `NAME SPEED WIRELESS DEVICE`, '-' for what there is not. ValueError otherwise."""
    found = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) != 4:
            raise ValueError(f"not a link: {line!r}")
        name, speed, wireless, device = fields
        # A link that is down says -1, and a virtual one without a speed says 4294967295.
        number = int(speed) if speed.isdecimal() and 0 < int(speed) < 10_000_000 else None
        found.append(Link(name, number, wireless == "yes", "" if device == "-" else device))
    return tuple(found)


def _rows(text: str) -> list[dict[str, Any]]:
    try:
        rows = json.loads(text or "[]")
    except ValueError as error:
        raise ValueError(f"ip did not print JSON: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("ip printed JSON of another shape")
    return rows


_LINKS = """\
for interface in "$1"/*; do
  [ -e "$interface/mtu" ] || continue
  speed=-; wireless=no; device=-
  { read -r speed < "$interface/speed"; } 2> /dev/null || speed=-
  [ -e "$interface/wireless" ] || [ -e "$interface/phy80211" ] && wireless=yes
  [ -e "$interface/device" ] && { device=$(readlink -f "$interface/device"); device=${device##*/}; }
  echo "${interface##*/} ${speed:--} $wireless $device"
done
"""


def links_under(root: str) -> tuple[str, ...]:
    """The command that prints the links of a sysfs tree; root is its class/net directory."""
    return ("sh", "-c", _LINKS, "links", root)


INTERFACES = Fact("interfaces", ("ip", "-json", "-details", "address"), parse_interfaces)
ROUTES = Fact("routes", ("ip", "-json", "-4", "route"), parse_routes)
LINKS = Fact("links", links_under("/sys/class/net"), parse_links)
