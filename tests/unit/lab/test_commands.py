from glmspark.lab import commands
from glmspark.lab.spec import LabSpec, Topology
from glmspark.lab.wiring import wire

WIRING = wire(LabSpec(2, rate=10**9), 0)
FABRIC, WIFI = WIRING.networks


def words(text: str) -> list[str]:
    return text.split()


def test_holders():
    assert commands.hold_switch() == ["unshare", "--net", "--", "sleep", "infinity"]
    node = commands.hold_node()
    assert node[-4:] == ["tini", "--", "sleep", "infinity"]
    assert {"--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"} <= set(node)


def test_entering():
    spaces = ["--mount", "--uts", "--ipc", "--net", "--pid"]
    assert commands.enter(7, ["id"]) == ["nsenter", "--target", "7", *spaces, "--", "id"]
    assert commands.enter_switch(9, ["ip", "link"]) == [
        "nsenter",
        "--target",
        "9",
        "--net",
        "--",
        "ip",
        "link",
    ]


def test_as_user_keeps_the_argv_as_it_is():
    argv = ["printf", "%s\n", "a b", "--", "$HOME", "'"]
    entered = commands.as_user("spark", "/home/a b", argv)
    assert entered[-len(argv) - 3 :] == ["env", "--chdir=/home/a b", "--", *argv]
    assert "--reset-env" in entered


def test_cables():
    port = FABRIC.ports[0]
    assert commands.plug_in(FABRIC, port, 42) == [
        words("ip link add name n1f0 type veth peer name enp1s0f0np0 netns 42"),
        words("ip link set dev n1f0 mtu 9000 master fabric up"),
    ]
    assert commands.claim_machine_port(WIRING.machine, 41) == [
        *words("ip link add name glmlab0 type veth peer name machine netns 41")
    ]
    assert commands.set_link(port, up=False) == words("ip link set dev n1f0 down")
    assert commands.set_link(port, up=True) == words("ip link set dev n1f0 up")


def test_the_default_route_goes_over_the_wifi_and_nothing_lies_beyond():
    node = commands.set_up_node_network(WIRING, "spark2")
    assert words("ip route add default via 198.19.0.1 dev wlP9s9") in node
    assert words("ip address add 198.18.0.12/24 brd + dev enp1s0f0np0") in node
    switch = commands.set_up_switch(WIRING)
    assert words("ip route add unreachable default") in switch
    assert words("ip address add 198.19.0.1/24 dev wifi") in switch


def test_only_a_ring_forwards():
    def forwards(spec: LabSpec) -> bool:
        return any(
            "net.ipv4.ip_forward=1" in argv for argv in commands.set_up_node_network(wire(spec, 0), "spark1")
        )

    assert not forwards(LabSpec(3))
    assert not forwards(LabSpec(2, Topology.PAIR))
    assert forwards(LabSpec(3, Topology.RING))
    ring = commands.set_up_node_network(wire(LabSpec(3, Topology.RING), 0), "spark1")
    assert words("ip route add 198.18.1.13 via 198.18.2.13 dev enp1s0f0np0") in ring


def test_a_shaped_link_is_shaped_at_both_ends():
    spec = LabSpec(2, rate=10**9)
    bucket = words("tbf rate 1000000000bit burst 500000 latency 20ms")
    assert commands.shape_far_end(spec, FABRIC, FABRIC.ports[0]) == [
        [*words("tc qdisc add dev n1f0 root"), *bucket]
    ]
    assert [*words("tc qdisc add dev enp1s0f0np0 root"), *bucket] in commands.shape_node(
        spec, WIRING, "spark1"
    )
    assert commands.shape_machine(spec, WIRING.machine, FABRIC) == [
        [*words("tc qdisc add dev glmlab0 root"), *bucket]
    ]


def test_without_a_rate_only_the_wifi_is_slow():
    spec = LabSpec(2)
    assert commands.shape_far_end(spec, FABRIC, FABRIC.ports[0]) == []
    (wifi,) = commands.shape_node(spec, WIRING, "spark1")
    assert wifi[:5] == words("tc qdisc add dev wlP9s9")
    assert "300000000bit" in wifi
    (far,) = commands.shape_far_end(spec, WIFI, WIFI.ports[0])
    assert "300000000bit" in far


def test_a_slow_link_still_holds_the_largest_packet():
    (argv,) = commands.shape_far_end(LabSpec(2, rate=10**6), FABRIC, FABRIC.ports[0])
    assert argv[argv.index("burst") + 1] == str(2 * 65536)


def test_delay_and_loss_come_before_the_rate():
    _, first, second = commands.shape_node(LabSpec(2, rate=10**9, delay_us=200, loss=0.001), WIRING, "spark1")
    assert first == words("tc qdisc add dev enp1s0f0np0 root handle 1: netem delay 200us loss 0.1%")
    assert second[:9] == words("tc qdisc add dev enp1s0f0np0 parent 1:1 handle 10:")
    _, alone = commands.shape_node(LabSpec(2, delay_us=5), WIRING, "spark1")
    assert alone[-3:] == ["netem", "delay", "5us"]


def test_docker_leaves_the_network_alone_and_keeps_to_its_control_group():
    argv = commands.start_docker("spark1", "glmspark-lab-0123")
    assert argv[:3] == ["setsid", "--fork", "dockerd"]
    assert {"--bridge=none", "--iptables=false", "--ip-forward=false"} <= set(argv)
    assert argv[argv.index("--cgroup-parent") + 1] == "/glmspark-lab-0123/spark1"
    assert commands.docker("/proc/5/root/run/docker.sock", "info") == [
        "docker",
        "--host",
        "unix:///proc/5/root/run/docker.sock",
        "info",
    ]
