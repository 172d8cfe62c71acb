"""Byte and error counters of network interfaces and RDMA devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .files import Roots

_NET_ERRORS = ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors", "tx_carrier_errors")
_PORT = ("port_rcv_errors", "symbol_error", "link_downed", "link_error_recovery", "port_xmit_discards")
_HARDWARE = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "req_cqe_error",
    "resp_cqe_error",
    "roce_adp_retrans_to",
)
"""Counters of trouble; what mlx5 means by them: https://docs.kernel.org/networking/device_drivers/ethernet/
mellanox/mlx5/counters.html."""
_WORD = 4
"""The standard data counters of an RDMA port count words of four bytes."""


@dataclass(frozen=True)
class Link:
    """One interface or RDMA port. rx, tx: bytes since it came up. errors: those above 0, by counter. up:
    whether it has a carrier (RDMA: is ACTIVE), None where that is not said (an interface taken down)."""

    rx: int
    tx: int
    errors: Mapping[str, int]
    up: bool | None

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {**asdict(self), "errors": dict(self.errors)}


def parse_counter(text: str) -> int:
    """A counter's file. Raises ValueError."""
    number = text.strip()
    if not (number.isdecimal() and number.isascii()):
        raise ValueError(f"not a counter: {number[:40]!r}")
    return int(number)


def parse_port_state(text: str) -> bool:
    """Whether an RDMA port's state file (`4: ACTIVE`) says that it is up."""
    return text.strip().endswith("ACTIVE")


def _number(roots: Roots, path: str) -> int | None:
    try:
        return parse_counter(roots.read(path))
    except (OSError, ValueError):
        return None


def _counted(roots: Roots, base: str, names: tuple[str, ...]) -> dict[str, int]:
    found = ((name, _number(roots, f"{base}/{name}")) for name in names)
    return {name: number for name, number in found if number}


def read_interface(roots: Roots, name: str) -> Link | None:
    """A network interface, None where there is none. Names are a user's too: they lead nowhere else."""
    if "/" in name or not name:
        return None
    base = f"/sys/class/net/{name}"
    rx, tx = (_number(roots, f"{base}/statistics/{one}_bytes") for one in ("rx", "tx"))
    if rx is None or tx is None:
        return None
    carrier = _number(roots, f"{base}/carrier")  # cannot be read while the interface is down
    errors = _counted(roots, f"{base}/statistics", _NET_ERRORS)
    return Link(rx, tx, errors, None if carrier is None else carrier == 1)


def read_interfaces(roots: Roots, only: tuple[str, ...] = ()) -> dict[str, Link]:
    """Interfaces by name; without `only` all that are devices rather than bridges and the like."""
    names = only or tuple(
        name for name in roots.names("/sys/class/net") if roots.names(f"/sys/class/net/{name}/device")
    )
    found = ((name, read_interface(roots, name)) for name in names)
    return {name: link for name, link in found if link is not None}


def read_rdma(roots: Roots) -> dict[str, Link]:
    """RDMA ports as DEVICE/PORT."""
    found = {}
    for device in roots.names("/sys/class/infiniband"):
        for port in roots.names(f"/sys/class/infiniband/{device}/ports"):
            base = f"/sys/class/infiniband/{device}/ports/{port}"
            counters = f"{base}/counters"
            words = [_number(roots, f"{counters}/port_{one}_data") for one in ("rcv", "xmit")]
            try:
                up: bool | None = parse_port_state(roots.read(f"{base}/state"))
            except OSError:
                up = None
            errors = _counted(roots, counters, _PORT) | _counted(roots, f"{base}/hw_counters", _HARDWARE)
            rx, tx = ((one or 0) * _WORD for one in words)
            found[f"{device}/{port}"] = Link(rx, tx, errors, up)
    return found
