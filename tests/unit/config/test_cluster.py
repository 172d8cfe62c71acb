import ipaddress
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.config.cluster import (
    Cluster,
    ClusterError,
    Link,
    Node,
    check_cluster,
    dump_cluster,
    load_cluster,
    parse_cluster,
)

TWO = """\
cluster: 1
name: desk
ssh: {user: nvidia, port: 22}
runtime: {kind: docker, image: "glmspark:1"}
nodes:
  - name: spark1
    address: spark1.local
    fabric:
      - {interface: enp1s0f0np0, address: 192.168.177.11/24, hca: rocep1s0f0, gid_index: 3}
      - {interface: enP2p1s0f0np0, address: 192.168.178.11/24}
  - name: spark2
    address: 10.0.0.2
    user: other
    port: 2222
    identity_file: ~/.ssh/second
    fabric:
      - {interface: enp1s0f1np1, address: 192.168.177.12/24, hca: rocep1s0f1}
"""


def first(text: str) -> ClusterError:
    with pytest.raises(ClusterError) as caught:
        parse_cluster(text.encode(), "cluster.yaml")
    return caught.value


def test_a_cluster_with_all_its_keys():
    cluster = parse_cluster(TWO.encode(), "cluster.yaml")
    one, two = cluster.nodes
    assert one.fabric[0].address == ipaddress.ip_interface("192.168.177.11/24")
    assert one.fabric[0].gid_index == 3
    assert two.fabric[0].hca == "rocep1s0f1"
    assert two.fabric[0].gid_index is None
    assert cluster.runtime.image == "glmspark:1"
    assert cluster.paths.models.startswith("~/")
    assert cluster.node("spark2") is two
    assert cluster.node("spark3") is None


def test_a_node_s_own_ssh_options_come_before_the_cluster_s():
    cluster = parse_cluster(TWO.encode(), "cluster.yaml")
    one, two = (cluster.reach(node) for node in cluster.nodes)
    assert (one.user, one.port, one.identity_file) == ("nvidia", 22, None)
    assert (two.user, two.port, two.identity_file) == ("other", 2222, "~/.ssh/second")


def test_one_node_needs_no_fabric():
    assert parse_cluster(b"cluster: 1\nnodes: [{name: a, address: a}]", "c.yaml").nodes[0].fabric == ()


def test_a_numeric_user_is_a_name():
    cluster = parse_cluster(b"cluster: 1\nssh: {user: 1234}\nnodes: [{name: a, address: a}]", "c.yaml")
    assert cluster.ssh.user == "1234"


@pytest.mark.parametrize(
    ("old", "new", "line", "message", "hint"),
    [
        ("cluster: 1", "cluster: 2", 1, "cluster: 2 is not accepted", "values are 1"),
        (
            "interface: enp1s0f1np1",
            "inteface: enp1s0f1np1",
            17,
            "unknown key 'inteface'",
            "did you mean 'interface'?",
        ),
        ("192.168.177.11/24", "192.168.177.11", 9, "expected an address with its prefix", None),
        ("192.168.177.11/24", "192.168.177.311/24", 9, "is not an address with its prefix", None),
        ("gid_index: 3", "gid_index: 256", 9, "less than or equal to 255", None),
        ("hca: rocep1s0f0,", "hca: 'a b',", 9, "does not match", None),
        ("kind: docker", "kind: dokcer", 4, "'dokcer' is not accepted", "did you mean 'docker'?"),
        ("address: 10.0.0.2", "address: -oProxyCommand=x", 12, "neither an IP address nor a host name", None),
        ("user: other", "user: -lroot", 13, "does not match", None),
        ("port: 2222", "port: 70000", 14, "less than or equal to 65535", None),
        ("~/.ssh/second", "second", 15, "is not an absolute path", None),
        ("interface: enp1s0f1np1", "interface: averyveryverylongname", 17, "does not match", None),
    ],
)
def test_faults_name_their_line(old, new, line, message, hint):
    assert old in TWO
    error = first(TWO.replace(old, new))
    assert message in error.message
    assert error.line == line
    if hint:
        assert error.hint is not None
        assert error.hint.startswith(hint)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: spark2", "name: spark1", "two nodes have the name spark1"),
        (
            "address: 10.0.0.2\n    user: other\n    port: 2222",
            "address: spark1.local",
            "two nodes have the address",
        ),
        ("192.168.177.12", "192.168.177.11", "two nodes have the fabric address 192.168.177.11"),
        ("192.168.177.12/24", "192.168.179.12/24", "no fabric link of spark1 is in the same network"),
        ("enP2p1s0f0np0", "enp1s0f0np0", "spark1 lists an interface twice"),
        ("{kind: docker, image", "{kind: venv, image", "image is given, but kind is venv"),
        ('{kind: docker, image: "glmspark:1"}', "{kind: venv}", "venv, the environment's directory"),
        ('image: "glmspark:1"', "venv: /opt/venv", "venv is given, but kind is docker"),
    ],
)
def test_what_does_not_fit_together(old, new, message):
    assert old in TWO
    error = first(TWO.replace(old, new))
    assert message in error.message
    assert ": :" not in error.message


def test_same_address_on_another_port_is_another_node():
    text = TWO.replace("address: 10.0.0.2", "address: spark1.local")
    assert len(parse_cluster(text.encode(), "c.yaml").nodes) == 2


def test_several_nodes_need_a_fabric():
    error = first("cluster: 1\nnodes: [{name: a, address: a}, {name: b, address: b}]")
    assert "a has no fabric" in error.message


def test_missing_file_and_other_data(tmp_path):
    with pytest.raises(ClusterError, match="no such file") as caught:
        load_cluster(tmp_path / "cluster.yaml")
    assert "`glmspark init HOST...` writes one" in (caught.value.hint or "")
    with pytest.raises(ClusterError, match="is a directory"):
        load_cluster(tmp_path)
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ClusterError, match="mapping of keys"):
        load_cluster(tmp_path / "list.yaml")
    assert caught.value.to_json()["path"].endswith("cluster.yaml")


@pytest.mark.timeout(20)
def test_what_never_comes_or_never_ends_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    for name in ("pipe.yaml", "zero.yaml"):
        with pytest.raises(ClusterError, match="not a regular file") as caught:
            load_cluster(tmp_path / name)
        assert caught.value.next == "write a cluster file into a file, and name that"
    with pytest.raises(ClusterError, match="no home directory"):
        load_cluster("~nobody-of-this-name/cluster.yaml")


names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)


@given(
    st.lists(st.tuples(names, st.booleans()), min_size=1, max_size=8, unique_by=lambda pair: pair[0]),
    st.sampled_from(["", "made by hand", "two\nlines: of it"]),
)
def test_what_is_written_is_read_back(nodes, comment):
    cluster = Cluster(
        cluster=1,
        nodes=tuple(
            Node(
                name=name,
                address=f"10.1.0.{number}",
                port=22 if flag else None,
                fabric=(Link(interface=f"f{number}", address=ipaddress.ip_interface(f"10.2.0.{number}/24")),),
            )
            for number, (name, flag) in enumerate(nodes, 1)
        ),
    )
    written = dump_cluster(cluster, comment=comment)
    assert parse_cluster(written, "c.yaml") == cluster
    assert parse_cluster(json.dumps(cluster.model_dump(mode="json")).encode(), "c.yaml") == cluster


@given(st.binary(max_size=300))
def test_any_bytes_give_a_cluster_or_problems(raw):
    cluster, problems = check_cluster(raw)
    assert problems if cluster is None else isinstance(cluster, Cluster)


@pytest.mark.parametrize("path", ["relative/dir", "/", "/etc", "/proc", "/a/../b", "/a,ro", '/a"b', "~/env"])
def test_what_cannot_be_mounted_is_refused(path: str):
    text = f"cluster: 1\nruntime: {{mounts: [{json.dumps(path)}]}}\nnodes: [{{name: a, address: a}}]\n"
    assert "mounts" in str(first(text)) or "mounted" in str(first(text)) or "hide" in str(first(text))


def test_a_container_s_python_and_mounts():
    text = b"cluster: 1\nruntime: {python: /opt/e/bin/python, mounts: [/opt/e/, /opt/f]}\n"
    cluster = parse_cluster(text + b"nodes: [{name: a, address: a}]", "c.yaml")
    assert cluster.runtime.mounts == ("/opt/e", "/opt/f")
    assert parse_cluster(dump_cluster(cluster), "c.yaml") == cluster
    with_venv = (
        "cluster: 1\nruntime: {kind: venv, venv: /e, python: /e/python}\nnodes: [{name: a, address: a}]"
    )
    assert "leave them out" in first(with_venv).message
