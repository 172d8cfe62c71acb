"""Watching: every part in its own time, and rates between two looks."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from glmspark.launch import monitor as monitors
from glmspark.launch.metrics import acceptance, parse_metrics
from glmspark.launch.monitor import Monitor, View
from glmspark.launch.record import State, home
from glmspark.nodes.node import LocalNode, Node
from glmspark.nodes.transport import Completed, NodeError
from tests.unit.launch.starts import make_start

METRICS = (Path(__file__).parent / "recorded" / "metrics-0.32.txt").read_text()
DRAFTS = """\
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0"}} {drafts}
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {drafted}
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {accepted}
"""


class Silent(Node):
    """A node that takes a command and never answers."""

    host = "spark2"

    async def run(self, argv: Sequence[str], **_: Any) -> Completed:
        await asyncio.sleep(3600)
        raise AssertionError


class Fleets:
    """Instead of connections: nodes by name."""

    def __init__(self, nodes: dict[str, Node | NodeError]) -> None:
        self._nodes = nodes

    def __call__(self, where: dict[str, Any]) -> Any:
        found = {name: self._nodes[name] for name in where}
        return Fleet(found)


class Fleet:
    """As nodes.fleet.Fleet, with the nodes given."""

    def __init__(self, found: dict[str, Node | NodeError]) -> None:
        self.nodes = {name: one for name, one in found.items() if isinstance(one, Node)}
        self.lost = {name: one for name, one in found.items() if isinstance(one, NodeError)}

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLMSPARK_STATE_DIR", str(tmp_path))


def watch(monitor: Monitor, until: Callable[[View], bool], *, limit: float = 15.0) -> View:
    """The first view that is as wanted."""

    async def run() -> View:
        async with monitor, asyncio.timeout(limit):
            while not until(view := monitor.view()):
                await asyncio.sleep(0.05)
            return view

    return asyncio.run(run())


def test_a_node_that_does_not_answer_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = NodeError("cannot reach spark3: no route", host="spark3")
    monkeypatch.setattr(monitors, "Fleet", Fleets({"a": LocalNode("a"), "b": Silent(), "c": lost}))
    monkeypatch.setattr(monitors, "_ASK", 1.5)
    monitor = Monitor(None, None, None, every=0.2)
    monitor._nodes = {name: monitors.NodeView(name) for name in "abc"}
    monitor._seen |= {name: asyncio.Event() for name in "abc"}
    known = {"a": None, "b": None, "c": None}

    async def run() -> tuple[View, View]:
        tasks = [asyncio.create_task(monitor._follow_node(name, known[name])) for name in "abc"]
        while monitor.view().nodes[0].at is None:
            await asyncio.sleep(0.02)
        early = monitor.view()
        while monitor.view().nodes[1].error is None:
            await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return early, monitor.view()

    early, late = asyncio.run(asyncio.wait_for(run(), 20))
    assert early.nodes[0].memory is not None
    assert early.nodes[0].memory.total > early.nodes[0].memory.free > 0
    assert early.nodes[1].at is None
    assert early.nodes[2].error == "cannot reach spark3: no route"
    assert late.nodes[1].error == "no answer within 1.5 s"
    json.dumps(late.to_json())


def test_the_guard_s_state_gives_gpu_alerts_and_fabric_rates(tmp_path: Path) -> None:
    guard = tmp_path / "guard"
    guard.mkdir()

    def told(at: float, received: int) -> None:
        state = {
            "time": at,
            "phase": "serving",
            "level": "low",
            "alerts": [{"kind": "memory-low", "what": "2 GiB left"}],
            "actions": [{"action": "close-admission", "why": "memory is low"}],
            "readings": {
                "gpu": [{"util": 96, "power_w": 20.5, "clock_mhz": 2400, "temp_c": 61}],
                "net": {"fab0": {"rx": received, "tx": 5}},
            },
        }
        (guard / "state.json").write_text(json.dumps(state))

    now = time.time()
    told(now - 2, 1000)
    monitor = Monitor(None, None, None, every=0.1)

    def until(view: View) -> bool:
        node = view.nodes[0]
        if node.at is not None and not node.fabric:
            told(now, 5000)
        return bool(node.fabric)

    node = watch(monitor, until).nodes[0]
    assert node.fabric == {"fab0": (2000.0, 0.0)}
    assert (node.gpus[0].util, node.gpus[0].power) == (96, 20.5)
    assert node.alerts == ("memory-low: 2 GiB left",)
    assert node.actions == ("close-admission: memory is low",)
    assert node.guard == "serving, memory low"


@pytest.mark.parametrize(
    "readings", [["of another version"], {"net": {"fab0": {"rx": "much"}}}, {"gpu": [1]}]
)
def test_a_guard_of_another_version_is_told_and_asked_again(tmp_path: Path, readings: Any) -> None:
    (tmp_path / "guard").mkdir()
    state = {"time": time.time(), "level": "ok", "readings": readings}
    (tmp_path / "guard/state.json").write_text(json.dumps(state))
    monitor = Monitor(None, None, None, every=0.1)
    error = watch(monitor, lambda view: view.nodes[0].error is not None).nodes[0].error
    assert "not understood" in str(error)


class Api(http.server.BaseHTTPRequestHandler):
    """Metrics of an engine that makes 100 tokens between two looks."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        made = METRICS.replace(
            'vllm:generation_tokens_total{engine="0",model_name="glm-tiny"}',
            'vllm:generation_tokens_total{engine="0",model_name="glm-tiny"} 1',
        )
        drafts = DRAFTS.format(drafts=10 * self.asked, drafted=30 * self.asked, accepted=15 * self.asked)
        body = (made + drafts).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def api() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def test_a_deployment_of_this_machine(api: int) -> None:
    place = home("one")
    place.prepare()
    deployment = make_start("one", "serves")
    deployment.endpoint.url = f"http://127.0.0.1:{api}/v1"
    deployment.plan["ranks"] = [{"rank": 0, "memory": {"weights": 100, "kv_cache": 50, "drafter": 1}}]
    deployment.turn(State.READY)
    place.write(deployment)
    view = watch(
        Monitor("one", place, None, every=0.1),
        lambda view: view.engine.accepted is not None and view.nodes[0].at is not None,
    )
    assert view.engine.accepted == (2.5, 0.5)
    assert view.engine.running is not None
    assert (view.name, view.state) == ("one", "lost")  # nobody holds its lock
    assert view.nodes[0].memory is not None
    assert view.nodes[0].memory.weights == 0  # nothing runs there


def test_an_api_that_does_not_answer_is_told() -> None:
    place = home("one")
    place.prepare()
    deployment = make_start("one", "serves")
    deployment.endpoint.url = "http://127.0.0.1:9/v1"
    place.write(deployment)
    view = watch(Monitor("one", place, None, every=0.1), lambda view: view.engine.error is not None)
    assert view.engine.error


def test_acceptance() -> None:
    first, second = (parse_metrics(DRAFTS.format(drafts=n, drafted=3 * n, accepted=2 * n)) for n in (10, 30))
    assert acceptance(first, second) == pytest.approx((3.0, 2 / 3))
    assert acceptance(second, first) is None
    assert acceptance(first, first) is None
    none = parse_metrics(METRICS)
    assert acceptance(none, none) is None
