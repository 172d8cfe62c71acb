"""What agents judge a deployment by, from its plan and recipe."""

from __future__ import annotations

from pathlib import Path

from glmspark.config.recipe import Restart
from glmspark.launch.node_agent.spec import Api, Canary, Watching, _part
from glmspark.launch.watching import api_of, canaries_of, guard_of, seen_on_head, stall_seconds, watching_of
from glmspark.plan import Endpoint
from tests.unit.launch.test_rank_commands import plan
from tests.unit.plan.plans import recipe


def test_a_stall_is_longer_than_three_of_the_largest_steps(tmp_path: Path) -> None:
    two = plan(tmp_path)
    flags = {**two.flags, "max-num-batched-tokens": 8192}
    large = two.model_copy(update={"flags": flags})
    assert stall_seconds(large, Restart()) == 3 * 8192 / 100
    assert stall_seconds(large.model_copy(update={"platform": "cuda"}), Restart()) == 3 * 8192 / 400
    small = two.model_copy(update={"flags": {**flags, "max-num-batched-tokens": 16}})
    assert stall_seconds(small, Restart()) == 30
    assert stall_seconds(large, Restart(stall_s=7.0)) == 7


def test_agents_understand_what_they_are_told(tmp_path: Path) -> None:
    two = plan(tmp_path)
    found = _part(Watching, watching_of(two, Restart(times=5, minutes=10.0), keep_up=True))
    assert (found.times, found.minutes, found.keep_up) == (5, 10.0, True)
    assert _part(Api, api_of(two)) == Api("127.0.0.1", "127.0.0.1", 8000, two.served_name)
    everywhere = two.model_copy(update={"endpoint": Endpoint(host="0.0.0.0", port=8000)})
    assert _part(Api, api_of(everywhere)) == Api("127.0.0.1", "0.0.0.0", 8000, two.served_name)
    canaries = [_part(Canary, one) for one in canaries_of(recipe())]
    assert canaries
    assert all(one.seconds > 0 and one.expect for one in canaries)
    assert [seen_on_head(host) for host in ("::", "10.0.0.1")] == ["::1", "10.0.0.1"]


def test_the_guard_gets_the_plan_s_numbers(tmp_path: Path) -> None:
    two = plan(tmp_path)
    head, other = (guard_of(two, rank, Restart(), 121 << 30) for rank in two.ranks)
    assert (head["version"], head["rank"], other["rank"]) == (1, 0, 1)
    assert head["metrics_url"] == "http://127.0.0.1:8000/metrics"
    assert other["metrics_url"] is None
    assert 0 < head["free_critical_bytes"] < head["free_low_bytes"]
    assert other["fabric"] == ["fab0"]
    assert head["stall_s"] == stall_seconds(two, Restart())
