"""Services that matter here: those that take memory, and those that kill processes when memory is short."""

from __future__ import annotations

from dataclasses import dataclass

from glmspark.nodes.facts import Fact

GRAPHICAL = ("gdm.service", "gdm3.service", "lightdm.service", "sddm.service", "display-manager.service")
RIVALS = ("earlyoom.service", "systemd-oomd.service", "nohang.service", "nohang-desktop.service")
OTHERS = ("snapd.service", "snapd.socket", "docker.service", "ssh.service", "nvidia-persistenced.service")
NAMES = (*GRAPHICAL, *RIVALS, *OTHERS)


@dataclass(frozen=True)
class Service:
    """A systemd unit. active: active, inactive, failed … enabled: enabled, disabled, static, masked, ''."""

    name: str
    loaded: bool
    active: str
    enabled: str

    @property
    def running(self) -> bool:
        """Whether it runs or is about to."""
        return self.active in ("active", "activating", "reloading")


def parse_services(text: str) -> dict[str, Service]:
    """Services by name from `systemctl show --property=Id,LoadState,ActiveState,UnitFileState UNIT …`.

    The units come as blocks parted by an empty line. Raises ValueError for a block without an Id.
    """
    found = {}
    for block in text.split("\n\n"):
        rows = dict(line.partition("=")[::2] for line in block.splitlines() if line)
        if not rows:
            continue
        if "Id" not in rows:
            raise ValueError(f"not a unit: {block[:80]!r}")
        found[rows["Id"]] = Service(
            rows["Id"],
            rows.get("LoadState") == "loaded",
            rows.get("ActiveState", ""),
            rows.get("UnitFileState", ""),
        )
    return found


def show(names: tuple[str, ...]) -> tuple[str, ...]:
    """The command that shows these units."""
    return ("systemctl", "show", "--property=Id,LoadState,ActiveState,UnitFileState", "--", *names)


SERVICES = Fact("services", show(NAMES), parse_services)
