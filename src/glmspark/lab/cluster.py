"""The lab as a cluster that everything else can be pointed at."""

from __future__ import annotations

from glmspark.config.cluster import Cluster, Link, Node, Paths, Runtime, SshOptions, dump_cluster
from glmspark.lab.image import IMAGE, engine_mounts, engine_python
from glmspark.lab.record import LabHome
from glmspark.lab.texts import USER
from glmspark.lab.wiring import Wiring


def lab_cluster(home: LabHome, wiring: Wiring) -> bytes:
    """The bytes of the lab's cluster.yaml."""
    cluster = Cluster(
        cluster=1,
        name="lab",
        ssh=SshOptions(user=USER, identity_file=str(home.key), known_hosts=str(home.known_hosts)),
        paths=Paths(models=f"/home/{USER}/models", cache=f"/home/{USER}/.cache/glmspark"),
        # The image is a bare system: the engine comes from this machine's own environment.
        runtime=Runtime(kind="docker", image=IMAGE, python=engine_python(), mounts=tuple(engine_mounts())),
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
