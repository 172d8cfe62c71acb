"""The lab's commands as argv lists; nothing here runs anything.

What is done in the switch or in a node is the same command behind `enter`.
"""

from __future__ import annotations

from collections.abc import Sequence

from glmspark.lab.spec import LabSpec
from glmspark.lab.wiring import FABRIC_MTU, WIFI_MTU, WIFI_RATE, Network, Port, Wiring

Argv = list[str]

HOLDER = ("sleep", "infinity")
"""What keeps a namespace: a process that does nothing."""


def hold_switch() -> Argv:
    """Start the process that keeps the switch's network namespace."""
    return ["unshare", "--net", "--", *HOLDER]


def hold_node() -> Argv:
    """Start the process that keeps a node's namespaces.

    `tini` is process 1 in there and collects what dies; with it dies everything in the node. The process id
    namespace makes a node see its own processes only, as a machine of its own does.
    """
    spaces = ["--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return ["unshare", *spaces, "--propagation", "private", "--", "tini", "--", *HOLDER]


def enter(pid: int, argv: Sequence[str]) -> Argv:
    """Run a command in the node whose process 1 is `pid`, in the node's root directory."""
    spaces = ["--mount", "--uts", "--ipc", "--net", "--pid"]
    return ["nsenter", "--target", str(pid), *spaces, "--", *argv]


def enter_switch(pid: int, argv: Sequence[str]) -> Argv:
    """Run a command in the switch's network namespace."""
    return ["nsenter", "--target", str(pid), "--net", "--", *argv]


def as_user(user: str, directory: str, argv: Sequence[str]) -> Argv:
    """Run a command as a user of the node, in a directory and in the environment a login has."""
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env", "--"]
    return [*become, "env", f"--chdir={directory}", "--", *argv]


def has_netem() -> Argv:
    """A command that succeeds where tc can delay and lose packets; it tries in a namespace of its own."""
    return ["unshare", "--net", "--", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]


def machine_routes() -> Argv:
    """List the machine's own routes, for wiring.free_slots."""
    return ["ip", "-json", "-4", "route", "show", "table", "all"]


def claim_machine_port(port: Port, switch: int) -> Argv:
    """Make the machine's port with its far end in the switch. Fails where the interface name is taken."""
    return [
        *("ip", "link", "add", "name", port.interface, "type", "veth"),
        *("peer", "name", port.far, "netns", str(switch)),
    ]


def set_up_machine_port(port: Port, network: Network) -> list[Argv]:
    """Give the machine's port its address and take it up."""
    return [
        ["ip", "link", "set", "dev", port.interface, "mtu", str(_mtu(network)), "up"],
        ["ip", "address", "add", str(port.address), "dev", port.interface],
    ]


def set_up_switch(wiring: Wiring) -> list[Argv]:
    """In the switch: the bridges; the gateway, which answers for itself and says that nothing lies beyond."""
    commands: list[Argv] = [["ip", "link", "set", "dev", "lo", "up"]]
    for network in wiring.networks:
        commands += [
            ["ip", "link", "add", "name", network.bridge, "type", "bridge"],
            # Without these a bridge drops groups it has not heard of, and waits before it forwards.
            [
                "ip",
                "link",
                "set",
                "dev",
                network.bridge,
                "type",
                "bridge",
                "mcast_snooping",
                "0",
                "forward_delay",
                "0",
            ],
            ["ip", "link", "set", "dev", network.bridge, "mtu", str(_mtu(network)), "up"],
        ]
    return [
        *commands,
        ["ip", "address", "add", str(wiring.wifi.gateway), "dev", wiring.wifi.bridge],
        ["ip", "route", "add", "unreachable", "default"],
        # Only a router answers "unreachable"; without it a node waits for the outside until its time-out.
        ["sysctl", "-q", "-w", "net.ipv4.ip_forward=1"],
    ]


def plug_in(network: Network, port: Port, node_pid: int) -> list[Argv]:
    """In the switch: a veth pair from a bridge to a node's interface."""
    pair = ["ip", "link", "add", "name", port.far, "type", "veth"]
    return [
        [*pair, "peer", "name", port.interface, "netns", str(node_pid)],
        *join_bridge(network, port),
    ]


def join_bridge(network: Network, port: Port) -> list[Argv]:
    """In the switch: put the far end of a port on its bridge."""
    return [["ip", "link", "set", "dev", port.far, "mtu", str(_mtu(network)), "master", network.bridge, "up"]]


def set_up_node_network(wiring: Wiring, node: str) -> list[Argv]:
    """In a node: addresses, the default route over the Wi-Fi, and the ways round a ring."""
    wifi = wiring.wifi_port(node)
    commands: list[Argv] = [["ip", "link", "set", "dev", "lo", "up"]]
    # Reverse path filters would drop what comes the other way round a ring.
    settings = ["net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0"]
    routes = wiring.routes(node)
    if routes:
        settings.append("net.ipv4.ip_forward=1")
    commands.append(["sysctl", "-q", "-w", *settings])
    for port, mtu in [*((port, FABRIC_MTU) for port in wiring.fabric(node)), (wifi, WIFI_MTU)]:
        commands += [
            ["ip", "address", "add", str(port.address), "brd", "+", "dev", port.interface],
            ["ip", "link", "set", "dev", port.interface, "mtu", str(mtu), "up"],
        ]
    commands.append(
        ["ip", "route", "add", "default", "via", str(wiring.wifi.gateway.ip), "dev", wifi.interface]
    )
    for route in routes:
        commands.append(["ip", "route", "add", str(route.to), "via", str(route.via), "dev", route.interface])
    return commands


def shape_far_end(spec: LabSpec, network: Network, port: Port) -> list[Argv]:
    """In the switch (for the machine's port too): the rate of what the port sends to the node."""
    rate = WIFI_RATE if network.wifi else spec.rate
    return [] if rate is None else [[*_qdisc(port.far), "root", *_tbf(rate)]]


def shape_node(spec: LabSpec, wiring: Wiring, node: str) -> list[Argv]:
    """In a node: rate, delay and loss of what it sends on each interface."""
    commands: list[Argv] = [[*_qdisc(wiring.wifi_port(node).interface), "root", *_tbf(WIFI_RATE)]]
    for port in wiring.fabric(node):
        device = _qdisc(port.interface)
        if spec.needs_netem:
            commands.append([*device, "root", "handle", "1:", *_netem(spec)])
            if spec.rate is not None:
                commands.append([*device, "parent", "1:1", "handle", "10:", *_tbf(spec.rate)])
        elif spec.rate is not None:
            commands.append([*device, "root", *_tbf(spec.rate)])
    return commands


def shape_machine(spec: LabSpec, port: Port, network: Network) -> list[Argv]:
    """On the machine: the rate of what its own port sends."""
    rate = WIFI_RATE if network.wifi else spec.rate
    return [] if rate is None else [[*_qdisc(port.interface), "root", *_tbf(rate)]]


def set_link(port: Port, *, up: bool) -> Argv:
    """In the switch: pull the cable of a port (the other end loses its carrier), or put it back."""
    return ["ip", "link", "set", "dev", port.far, "up" if up else "down"]


def list_links() -> Argv:
    """In the switch: the state of its ports, for look.parse_links."""
    return ["ip", "-json", "link", "show"]


def start_sshd() -> Argv:
    """In a node: its sshd, which goes to the background by itself."""
    return ["/usr/sbin/sshd", "-f", "/etc/ssh/sshd_config", "-E", "/var/log/sshd.log"]


def start_docker(node: str, cgroup: str) -> Argv:
    """In a node: its Docker Engine, as a child of the node's process 1.

    It makes no bridge and no firewall rules: containers of a rank use the node's own network. Containers go
    under the lab's own control group.
    """
    quiet = [
        "--bridge=none",
        "--iptables=false",
        "--ip6tables=false",
        "--ip-forward=false",
        "--ip-masq=false",
    ]
    return [
        *("setsid", "--fork", "dockerd", "--host", "unix:///run/docker.sock", *quiet),
        *("--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", f"/{cgroup}/{node}"),
        *("--label", f"glmspark.lab.node={node}"),
    ]


def docker(socket: str, *words: str) -> Argv:
    """Ask a node's Docker Engine through its socket, which the machine reaches below /proc."""
    return ["docker", "--host", f"unix://{socket}", *words]


def keygen(path: str, comment: str) -> Argv:
    """Make an ed25519 key pair without a passphrase."""
    return ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path]


def _mtu(network: Network) -> int:
    return WIFI_MTU if network.wifi else FABRIC_MTU


def _qdisc(device: str) -> Argv:
    return ["tc", "qdisc", "add", "dev", device]


def _tbf(rate: int) -> Argv:
    """A token bucket that holds 4 ms at the rate, and the largest packet the stack hands down (64 KiB) twice;
    what waits longer than 20 ms is dropped."""
    burst = max(rate * 4 // 1000 // 8, 2 * 65536)
    return ["tbf", "rate", f"{rate}bit", "burst", str(burst), "latency", "20ms"]


def _netem(spec: LabSpec) -> Argv:
    delay = ["delay", f"{spec.delay_us}us"] if spec.delay_us else []
    loss = ["loss", f"{100 * spec.loss:.6g}%"] if spec.loss else []
    return ["netem", *delay, *loss]
