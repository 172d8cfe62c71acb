"""RDMA devices of a node: state, rate, the network interface behind each, and the GID table.

One ConnectX-7 port of a Spark shows as two devices, one per PCIe half (rocep1s0f0 and roceP2p1s0f0). The
index of the GID that carries an interface's IPv4 address differs from node to node and moves when addresses
are set anew, so it is looked up each time.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from glmspark.nodes.facts import Fact


@dataclass(frozen=True)
class Gid:
    """One entry of a port's GID table. version: 1 or 2 of RoCE. interface: '' where sysfs names none."""

    index: int
    version: int
    value: str
    interface: str = ""

    @property
    def ipv4(self) -> str | None:
        """The IPv4 address it carries, None for link-local and IPv6 ones."""
        mapped = ipaddress.IPv6Address(self.value).ipv4_mapped
        return None if mapped is None else str(mapped)


@dataclass(frozen=True)
class RdmaPort:
    """One port of an RDMA device. rate: Gbit/s. interface: its network interface, '' if none."""

    device: str
    port: int
    state: str
    physical: str
    rate: float
    interface: str
    gids: tuple[Gid, ...] = field(default=())

    @property
    def active(self) -> bool:
        """Whether it can carry traffic."""
        return self.state == "ACTIVE"

    def gid_of(self, address: str) -> int | None:
        """The index of the RoCE v2 GID with this IPv4 address, None if there is none."""
        return next((gid.index for gid in self.gids if gid.version == 2 and gid.ipv4 == address), None)


def parse_rdma(text: str) -> tuple[RdmaPort, ...]:
    """Ports from lines `port DEVICE|N|STATE|PHYSICAL|RATE|INTERFACE` and `gid INDEX|TYPE|INTERFACE|VALUE`.

    State and rate are as sysfs has them: "4: ACTIVE", "5: LinkUp", "200 Gb/sec (4X HDR)". Raises ValueError
    for a line of another kind or a GID before any port.
    """
    ports: list[RdmaPort] = []
    gids: list[Gid] = []

    def close() -> None:
        if ports:
            last = ports.pop()
            ports.append(RdmaPort(**{**vars(last), "gids": tuple(gids)}))
            gids.clear()

    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        fields = rest.split("|")
        if kind == "port" and len(fields) == 6:
            close()
            device, number, state, physical, rate, interface = fields
            ports.append(
                RdmaPort(
                    device=device,
                    port=int(number),
                    state=state.partition(":")[2].strip() or state,
                    physical=physical.partition(":")[2].strip() or physical,
                    rate=float(rate.split()[0]) if rate.split() else 0.0,
                    interface=interface,
                )
            )
        elif kind == "gid" and len(fields) == 4 and ports:
            index, sort, interface, value = fields
            gids.append(Gid(int(index), 2 if "v2" in sort.lower() else 1, value, interface))
        else:
            raise ValueError(f"not a line about an RDMA port: {line!r}")
    close()
    return tuple(ports)


# Only shell builtins inside the loops: a table has 256 rows, and a process for each would take seconds.
_PORTS = """\
for port in "$1"/*/ports/*; do
  [ -d "$port" ] || continue
  device=${port%/ports/*}
  state=; physical=; rate=; interface=
  read -r state < "$port/state"
  { read -r physical < "$port/phys_state"; } 2> /dev/null
  { read -r rate < "$port/rate"; } 2> /dev/null
  for one in "$device"/device/net/*; do [ -e "$one" ] && interface=${one##*/}; done
  echo "port ${device##*/}|${port##*/}|$state|$physical|$rate|$interface"
  for gid in "$port"/gids/*; do
    value=
    { read -r value < "$gid"; } 2> /dev/null
    case "$value" in ''|0000:0000:0000:0000:0000:0000:0000:0000) continue;; esac
    index=${gid##*/}; kind=; of=
    { read -r kind < "$port/gid_attrs/types/$index"; } 2> /dev/null
    { read -r of < "$port/gid_attrs/ndevs/$index"; } 2> /dev/null
    echo "gid $index|$kind|$of|$value"
  done
done
"""


def ports_under(root: str) -> tuple[str, ...]:
    """The command that prints the ports of a sysfs tree; root is its class/infiniband directory."""
    return ("sh", "-c", _PORTS, "ports", root)


RDMA = Fact("RDMA devices", ports_under("/sys/class/infiniband"), parse_rdma)
