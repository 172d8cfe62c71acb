"""The readings in Prometheus' text format, and the door where they are asked for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .decide import LEVELS

_TIMEOUT = 2.0
_HEAD = "HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
_TEXT = "text/plain; version=0.0.4; charset=utf-8"

_HELP = {
    "memory_bytes": "Memory by kind; huge_free: in free blocks of 2 MiB and more.",
    "memory_pressure_percent": "Share of the last 10 s in which tasks waited for memory.",
    "swap_bytes_per_second": "Swap traffic.",
    "level": "Where memory stands: 0 ok, 1 low, 2 critical.",
    "admission_open": "Whether new requests are taken as far as memory goes.",
    "gpu_utilization_percent": "What nvidia-smi calls utilization.",
    "gpu_power_watts": "Power drawn.",
    "gpu_clock_mhz": "Clock of the multiprocessors.",
    "gpu_temperature_celsius": "Temperature.",
    "disk_free_bytes": "Free where the guard's and the deployments' files lie.",
    "link_bytes": "Bytes since the link came up, by interface or RDMA port.",
    "link_errors": "Sum of a link's error counters.",
    "link_up": "Whether the link has a carrier.",
    "deployment_resident_bytes": "Memory of a rank's processes.",
    "deployment_phase": "1 for the phase a deployment is in.",
    "deployment_still_seconds": "Seconds without an engine step while requests run.",
    "alert": "1 for each alert there is.",
    "actions_total": "Actions since the guard's start, by kind.",
    "up_seconds": "Seconds since the guard's start.",
}


def escape(text: str) -> str:
    """A label's value as the format wants it."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


Row = tuple[str, dict[str, str], float]


def rows(state: Mapping[str, Any]) -> Iterator[Row]:
    """Name, labels and value of every number in a state."""
    readings = state["readings"]
    yield from _memory_rows(readings.get("memory") or {})
    yield "level", {}, LEVELS.index(state["level"])
    yield "admission_open", {}, float(state["admission"]["open"])
    for gpu in readings.get("gpu", ()):
        yield from _gpu_rows(gpu)
    for path, disk in readings.get("disk", {}).items():
        yield "disk_free_bytes", {"path": path}, disk["free"]
    for kind in ("net", "rdma"):
        for name, link in readings.get(kind, {}).items():
            yield from _link_rows(name, link)
    for name, one in state["deployments"].items():
        label = {"deployment": name}
        yield "deployment_resident_bytes", label, one["resident"]
        yield "deployment_phase", {**label, "phase": one["phase"]}, 1
        yield "deployment_still_seconds", label, one.get("still_s", 0.0)
    for alert in state["alerts"]:
        of = alert["reading"].get("of", "") if isinstance(alert["reading"], dict) else ""
        yield "alert", {"kind": alert["kind"], "of": str(alert.get("deployment") or of)}, 1
    for kind, count in state.get("counts", {}).items():
        yield "actions_total", {"kind": kind}, count
    yield "up_seconds", {}, state["up_s"]


def _memory_rows(memory: Mapping[str, Any]) -> Iterator[Row]:
    for kind in ("total", "free", "available", "page_cache", "huge_free"):
        if memory.get(kind) is not None:
            yield "memory_bytes", {"kind": kind}, memory[kind]
    for kind in ("some", "full"):
        if f"psi_{kind}" in memory:
            yield "memory_pressure_percent", {"kind": kind}, memory[f"psi_{kind}"]
    for way in ("in", "out"):
        if f"swap_{way}" in memory:
            yield "swap_bytes_per_second", {"way": way}, memory[f"swap_{way}"]


def _gpu_rows(gpu: Mapping[str, Any]) -> Iterator[Row]:
    for field, name in (
        ("util", "gpu_utilization_percent"),
        ("power_w", "gpu_power_watts"),
        ("clock_mhz", "gpu_clock_mhz"),
        ("temp_c", "gpu_temperature_celsius"),
    ):
        if gpu[field] is not None:
            yield name, {"gpu": str(gpu["index"])}, gpu[field]


def _link_rows(name: str, link: Mapping[str, Any]) -> Iterator[Row]:
    yield "link_bytes", {"link": name, "way": "rx"}, link["rx"]
    yield "link_bytes", {"link": name, "way": "tx"}, link["tx"]
    yield "link_errors", {"link": name}, sum(link["errors"].values())
    if link["up"] is not None:
        yield "link_up", {"link": name}, float(link["up"])


def render(state: Mapping[str, Any]) -> str:
    """The text for a state as `run` makes it."""
    by_name: dict[str, list[str]] = {}
    node = escape(str(state["node"]))
    for name, labels, value in rows(state):
        words = [f'node="{node}"', *(f'{key}="{escape(text)}"' for key, text in labels.items())]
        by_name.setdefault(name, []).append(f"glmspark_guard_{name}{{{','.join(words)}}} {value:.15g}")
    lines = []
    for name, found in by_name.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [
            f"# HELP glmspark_guard_{name} {_HELP[name]}",
            f"# TYPE glmspark_guard_{name} {kind}",
            *found,
        ]
    return "\n".join(lines) + "\n"


class Door:
    """Answers GET /metrics and /state in a thread. Raises OSError where the address is taken.

    text, state: give what is to be said, from the last look.
    """

    def __init__(self, address: tuple[str, int], text: Callable[[], str], state: Callable[[], str]) -> None:
        self._answers = {"/metrics": (text, _TEXT), "/state": (state, "application/json")}
        self._socket = socket.create_server(address, backlog=8)
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(_TIMEOUT)
                try:
                    self._answer(connection)
                except (OSError, ValueError):  # what cannot be said in UTF-8 must not end the thread
                    continue

    def _answer(self, connection: socket.socket) -> None:
        words = connection.recv(4096).split(b"\r\n")[0].split()
        path = words[1].decode("ascii", "replace").partition("?")[0] if len(words) > 1 else ""
        say, kind = self._answers.get(path, (None, "text/plain"))
        if say is None or words[0] != b"GET":
            status, body = "404 Not Found", b"GET /metrics or /state\n"
        else:
            status, body = "200 OK", say().encode()
        connection.sendall(_HEAD.format(status=status, kind=kind, length=len(body)).encode() + body)

    def close(self) -> None:
        """Answer no more."""
        self._socket.close()
