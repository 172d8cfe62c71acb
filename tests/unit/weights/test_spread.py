import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.config.cluster import parse_cluster
from glmspark.errors import GlmsparkError
from glmspark.weights.fetch import fabric_addresses
from glmspark.weights.spread import HubSource, certificate, chain
from tests.unit.nodes.sparks import CLUSTER

FILES = {"config.json": 1, "a.safetensors": 2, "b.safetensors": 3, "tokenizer.json": 4}


def test_each_takes_from_the_one_before():
    pieces = chain(["n1", "n2", "n3"], FILES)
    assert [one.source for one in pieces["n1"]] == [None] * 4
    assert {one.source for one in pieces["n2"]} == {"n1"}
    assert {one.source for one in pieces["n3"]} == {"n2"}
    assert all(one[-1].name == "config.json" for one in pieces.values())


def test_the_first_takes_from_the_hub():
    hub = {name: HubSource(f"https://hub/{name}", "aa") for name in FILES}
    pieces = chain(["n1", "n2"], FILES, hub=hub)
    assert pieces["n1"][0].to_json()["from"] == {
        "url": "https://hub/a.safetensors",
        "sha256": "aa",
        "blob": None,
    }


@given(
    st.lists(st.sets(st.sampled_from(sorted(FILES))), min_size=1, max_size=6),
)
def test_whoever_wants_less_takes_each_file_from_one_that_has_it(wanted):
    nodes = ["first", *(f"n{i}" for i in range(len(wanted)))]
    pieces = chain(nodes, FILES, dict(zip(nodes[1:], wanted, strict=True)))
    for place, node in enumerate(nodes[1:], 1):
        assert {one.name for one in pieces[node]} == wanted[place - 1]
        for one in pieces[node]:
            assert nodes.index(str(one.source)) < place
            assert one.name in {other.name for other in pieces[str(one.source)]}


def test_the_certificate_is_one_that_tls_takes():
    pem = certificate()
    assert pem.count("PRIVATE KEY") == 2
    context = ssl.create_default_context(cadata=pem[pem.index("-----BEGIN CERT") :])
    assert len(context.get_ca_certs()) == 1
    assert certificate() != pem


def test_addresses_are_the_fabric_s():
    cluster = parse_cluster(CLUSTER.encode(), "cluster.yaml")
    found = fabric_addresses(cluster)
    assert found == {node.name: str(node.fabric[0].address.ip) for node in cluster.nodes}
    bare = cluster.model_copy(
        update={"nodes": tuple(n.model_copy(update={"fabric": ()}) for n in cluster.nodes)}
    )
    with pytest.raises(GlmsparkError, match="has no fabric address"):
        fabric_addresses(bare)
