"""A virtual cluster on one machine: nodes with a network, sshd, Docker Engine and files of their own."""

from glmspark.lab.cables import switch_links
from glmspark.lab.down import Cleared, down
from glmspark.lab.image import bring_image, ensure_image
from glmspark.lab.look import LabState, look
from glmspark.lab.record import LabHome, lab_home
from glmspark.lab.run import LabError
from glmspark.lab.shell import shell_argv
from glmspark.lab.spec import LabSpec, Topology, parse_delay, parse_loss, parse_rate
from glmspark.lab.up import up

__all__ = [
    "Cleared",
    "LabError",
    "LabHome",
    "LabSpec",
    "LabState",
    "Topology",
    "bring_image",
    "down",
    "ensure_image",
    "lab_home",
    "look",
    "parse_delay",
    "parse_loss",
    "parse_rate",
    "shell_argv",
    "switch_links",
    "up",
]
