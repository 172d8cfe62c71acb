import ipaddress
import itertools
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.config.cluster import parse_cluster
from glmspark.errors import GlmsparkError
from glmspark.weights.parts import NodePart, chain_parts
from glmspark.weights.spread import HubSource, Part, certificate, chain
from glmspark.weights.ways import Ways, ways
from tests.unit.nodes.sparks import CLUSTER

FILES = {"config.json": 1, "a.safetensors": 2, "b.safetensors": 3, "tokenizer.json": 4}


def line(*nodes):
    return Ways(nodes, dict(zip(nodes[1:], nodes, strict=False)), {})


def test_each_takes_from_the_one_before():
    pieces = chain(line("n1", "n2", "n3"), FILES)
    assert [one.source for one in pieces["n1"]] == [None] * 4
    assert {one.source for one in pieces["n2"]} == {"n1"}
    assert {one.source for one in pieces["n3"]} == {"n2"}
    assert all(one[-1].name == "config.json" for one in pieces.values())


def test_the_first_takes_from_the_hub():
    hub = {name: HubSource(f"https://hub/{name}", "aa") for name in FILES}
    pieces = chain(line("n1", "n2"), FILES, hub=hub)
    assert pieces["n1"][0].to_json()["from"] == {
        "url": "https://hub/a.safetensors",
        "sha256": "aa",
        "blob": None,
    }


SHARDS = sorted(name for name in FILES if name.endswith(".safetensors"))
KEPT = st.dictionaries(st.sampled_from(SHARDS), st.sampled_from([None, Part("{}", ((0, 1),))]))


@given(st.lists(KEPT, min_size=1, max_size=6), st.booleans())
def test_whoever_wants_less_takes_each_file_from_one_that_has_all_of_it(wanted, from_hub):
    parts = {f"n{i}": NodePart(f"n{i}", i, kept, "{}", 0, 0) for i, kept in enumerate(wanted)}
    nodes = list(parts)
    hub = {name: HubSource(f"https://hub/{name}", "aa") for name in FILES} if from_hub else None
    pieces = chain_parts(line(*nodes), FILES, parts, hub)
    index = "model.safetensors.index.json"
    for place, node in enumerate(nodes[1:], 1):
        mine = {one.name: one for one in pieces[node]}
        assert mine.keys() == {*wanted[place], "config.json", "tokenizer.json", index}
        assert pieces[node][-1].name == "config.json"
        for name, one in mine.items():
            if name == index:
                continue
            assert one.part == wanted[place].get(name)
            assert nodes.index(one.source) < place
            (given,) = (other for other in pieces[one.source] if other.name == name)
            assert given.part is None or given.through
    first = {one.name: one for one in pieces["n0"]}
    if from_hub:  # the first stores no more than what it needs, and has what others take from it
        kept = {name for name, one in first.items() if one.part is None or one.part.spans}
        assert kept == {*wanted[0], "config.json", "tokenizer.json", index}
        assert set(first) & set(SHARDS) == set().union(*wanted)
    else:
        assert all(one.source is None for one in first.values())


def test_the_certificate_is_one_that_tls_takes():
    pem = certificate()
    assert pem.count("PRIVATE KEY") == 2
    context = ssl.create_default_context(cadata=pem[pem.index("-----BEGIN CERT") :])
    assert len(context.get_ca_certs()) == 1
    assert certificate() != pem


def on_a_switch():
    return parse_cluster(CLUSTER.encode(), "cluster.yaml")


def on_a_ring(count):
    """Each node has a cable to the next, and the last to the first."""
    text = ["cluster: 1", "nodes:"]
    for i in range(count):
        text += [f"  - name: n{i}", f"    address: 192.168.0.{i + 1}", "    fabric:"]
        for side in (0, 1):
            address = f"10.0.{(i + side - 1) % count}.{2 - side}/24"
            text += [f"      - interface: en{side}", f"        address: {address}"]
    return parse_cluster("\n".join(text).encode(), "cluster.yaml")


def test_on_a_switch_each_takes_from_the_one_before():
    cluster = on_a_switch()
    names = [node.name for node in cluster.nodes]
    found = ways(cluster, names[::-1])
    assert found.order == tuple(names[::-1])
    assert found.before == dict(itertools.pairwise(names))
    for node in cluster.nodes:
        assert set(found.addresses[node.name].values()) <= {str(node.fabric[0].address.ip)}
    bare = cluster.model_copy(
        update={"nodes": tuple(n.model_copy(update={"fabric": ()}) for n in cluster.nodes)}
    )
    with pytest.raises(GlmsparkError, match="has no fabric address"):
        ways(bare, names)


@pytest.mark.parametrize(
    ("count", "before"),
    [
        (3, {"n1": "n0", "n2": "n0"}),
        (4, {"n1": "n0", "n3": "n0", "n2": "n1"}),
        (6, {"n1": "n0", "n5": "n0", "n2": "n1", "n4": "n5", "n3": "n2"}),
    ],
)
def test_a_ring_takes_both_directions(count, before):
    cluster = on_a_ring(count)
    found = ways(cluster, [node.name for node in cluster.nodes])
    assert found.before == before
    for taker, giver in before.items():
        address = ipaddress.ip_address(found.addresses[giver][taker])
        mine, theirs = cluster.node(giver), cluster.node(taker)
        (link,) = (one for one in mine.fabric if one.address.ip == address)
        assert any(one.address.network == link.address.network for one in theirs.fabric)
    pieces = chain(found, FILES)
    assert {node: {one.source for one in pieces[node]} for node in before} == {
        taker: {giver} for taker, giver in before.items()
    }
