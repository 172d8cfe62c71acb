"""Where the API may listen on a cluster: at the head's own addresses."""

from __future__ import annotations

import pytest

from glmspark.errors import UsageError
from glmspark.launch.cluster_prepare import refuse_elsewhere
from glmspark.nodes.survey import Facts
from tests.unit.nodes.sparks import readings

HEAD = Facts("spark1", readings(1))


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "127.0.0.1", "127.0.0.2", "10.10.1.1", "::", "localhost", "name"]
)
def test_what_may_be_the_heads(host: str) -> None:
    refuse_elsewhere(host, "spark1", HEAD)


def test_what_no_fact_is_known_of() -> None:
    refuse_elsewhere("10.10.1.2", "spark1", Facts("spark1", {}))


def test_another_nodes_address() -> None:
    with pytest.raises(UsageError, match=r"10\.10\.1\.2 is no address of spark1") as caught:
        refuse_elsewhere("10.10.1.2", "spark1", HEAD)
    assert "10.10.1.1" in str(caught.value.next)
    assert "--nodes" in str(caught.value.next)
