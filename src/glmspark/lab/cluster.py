"""The lab as a cluster that everything else can be pointed at."""

from __future__ import annotations

from glmspark.config.cluster import Cluster, Link, Node, Paths, Runtime, SshOptions, dump_cluster
from glmspark.lab.record import LabHome
from glmspark.lab.texts import USER
from glmspark.lab.wiring import Wiring

IMAGE = "glmspark-lab:base"
"""The base image's name on every node."""


def lab_cluster(home: LabHome, wiring: Wiring) -> bytes:
    """The bytes of the lab's cluster.yaml."""
    cluster = Cluster(
        cluster=1,
        name="lab",
        ssh=SshOptions(user=USER, identity_file=str(home.key), known_hosts=str(home.known_hosts)),
        paths=Paths(models=f"/home/{USER}/models", cache=f"/home/{USER}/.cache/glmspark"),
        runtime=Runtime(kind="docker", image=IMAGE),
        nodes=tuple(
            Node(
                name=name,
                address=str(wiring.reached_at(name)),
                fabric=tuple(
                    Link(interface=port.interface, address=port.address) for port in wiring.fabric(name)
                ),
            )
            for name in wiring.nodes
        ),
    )
    return dump_cluster(cluster, comment="A lab of virtual Sparks, written by `glmspark lab up`.")
