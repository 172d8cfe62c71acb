"""GPU, links, vLLM's metrics, processes: parsers on recorded output, and no harm from any other."""

from __future__ import annotations

import http.server
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.guard.engine_metrics import fetch, parse_metrics, parse_url
from glmspark.guard.files import Roots, Trouble
from glmspark.guard.gpu import GpuReader, parse_row
from glmspark.guard.links import parse_counter, read_interface, read_interfaces, read_rdma
from glmspark.guard.processes import named, parse_stat, read_process
from tests.unit.guard.spark import put, stat_line

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="glm {tiny}"} 2.0
vllm:num_requests_waiting{engine="0",model_name="glm-tiny"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="glm-tiny"} 0.25
vllm:generation_tokens_total{engine="0",model_name="glm-tiny"} 1234.0
vllm:generation_tokens_total{engine="1",model_name="glm-tiny"} 1.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="glm-tiny"} 50.0
vllm:iteration_tokens_total_count{engine="0",model_name="glm-tiny"} 77.0
vllm:iteration_tokens_total_sum{engine="0",model_name="glm-tiny"} 1300.0
"""


def test_rows_of_nvidia_smi() -> None:
    # An H200 as it printed it, and a GB10, whose memory the driver does not tell.
    large = parse_row("0, 37, 121.34, 1980, 35, 4321, 143771")
    assert (large.util, large.power_w, large.memory_total) == (37, 121.34, 143771 * 2**20)
    assert not large.unified
    spark = parse_row("0, 96, 20.41, 2411, 51, [N/A], [N/A]")
    assert (spark.util, spark.power_w, spark.memory_used) == (96, 20.41, None)
    assert spark.unified


@given(st.text(max_size=100) | st.lists(st.text(max_size=5), max_size=9).map(",".join))
def test_any_other_row_is_refused(text: str) -> None:
    try:
        parse_row(text)
    except (ValueError, OverflowError):
        return


def test_the_query_runs_on_and_is_begun_again(tmp_path: Path) -> None:
    # Not flushed: a program that prints into a pipe would keep its rows to itself.
    script = "import time\nprint('0, 1, 5.5, 208, 40, [N/A], [N/A]')\n"
    goes_on = GpuReader([sys.executable, "-c", script + "time.sleep(60)"])
    ends = GpuReader([sys.executable, "-c", script])
    absent = GpuReader([str(tmp_path / "nvidia-smi")])
    for reader in (goes_on, ends, absent):
        assert reader.read(0.0) == []
    end = time.monotonic() + 60
    while time.monotonic() < end and not (goes_on.read(1.0) and ends.read(1.0) and ends.problem):
        time.sleep(0.02)
    assert [gpu.power_w for gpu in goes_on.read(1.0)] == [5.5]
    assert goes_on.read(30.0) == []  # a row that old says nothing any more
    assert "ended with 0" in str(ends.problem)
    assert absent.read(2.0) == []
    assert absent.problem is None
    ends.read(100.0)
    assert ends.problem is None
    for reader in (goes_on, ends, absent):
        reader.close()


def test_links_and_rdma(tmp_path: Path) -> None:
    net, port = "/sys/class/net/enp1s0f0np0", "/sys/class/infiniband/rocep1s0f0/ports/1"
    for name, value in (("rx_bytes", 10), ("tx_bytes", 20), ("rx_errors", 0), ("rx_crc_errors", 3)):
        put(tmp_path, f"{net}/statistics/{name}", f"{value}\n")
    put(tmp_path, f"{net}/carrier", "1\n")
    put(tmp_path, f"{net}/device/vendor", "0x15b3\n")
    put(tmp_path, f"{port}/counters/port_rcv_data", "25\n")
    put(tmp_path, f"{port}/counters/port_xmit_data", "50\n")
    put(tmp_path, f"{port}/hw_counters/out_of_sequence", "7\n")
    put(tmp_path, f"{port}/state", "4: ACTIVE\n")
    roots = Roots(str(tmp_path))
    link = read_interface(roots, "enp1s0f0np0")
    assert link is not None
    assert (link.rx, link.tx, dict(link.errors), link.up) == (10, 20, {"rx_crc_errors": 3}, True)
    assert set(read_interfaces(roots)) == {"enp1s0f0np0"}
    assert read_interfaces(roots, ("nothing",)) == {}
    (rdma,) = read_rdma(roots).values()
    assert (rdma.rx, rdma.tx, dict(rdma.errors), rdma.up) == (100, 200, {"out_of_sequence": 7}, True)
    put(tmp_path, f"{port}/state", "1: DOWN\n")
    assert read_rdma(roots)["rocep1s0f0/1"].up is False


@given(st.text(max_size=30))
def test_a_counter_is_a_number(text: str) -> None:
    try:
        assert parse_counter(text) >= 0
    except ValueError:
        return


def test_vllms_metrics() -> None:
    found = parse_metrics(METRICS)
    assert (found.running, found.waiting, found.kv_usage) == (2, 1, 0.25)
    assert (found.tokens, found.steps, found.prompt_tokens) == (1235, 77, None)
    assert found.busy
    assert not parse_metrics("").busy
    with pytest.raises(ValueError, match="no value"):
        parse_metrics("vllm:num_requests_running\n")


@given(st.text(max_size=200) | st.text(max_size=40).map(lambda text: f"vllm:num_requests_running{text}"))
def test_any_metrics_text_is_read_or_refused(text: str) -> None:
    try:
        parse_metrics(text)
    except ValueError:
        return


def test_urls() -> None:
    assert parse_url("http://10.0.0.1:8000/metrics") == ("10.0.0.1", 8000, "/metrics")
    assert parse_url("http://[::1]:8000") == ("::1", 8000, "/")
    for wrong in ("https://a/", "ftp://a", "http://:80/", "http://a:b/", "http://a/ x\r\n"):
        with pytest.raises(ValueError, match="not an http URL"):
            parse_url(wrong)


def test_metrics_are_fetched_and_refusals_told() -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 500)
            self.end_headers()
            self.wfile.write(METRICS.encode())

        def log_message(self, *words: object) -> None:
            return

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        assert fetch(f"{base}/metrics").steps == 77
        with pytest.raises(Trouble, match="500"):
            fetch(f"{base}/other")
        server.shutdown()
    with pytest.raises(Trouble, match="refused"):
        fetch(f"{base}/metrics")


def test_processes(tmp_path: Path) -> None:
    found = parse_stat(stat_line(42, "VLLM) (x", state="T"))
    assert (found.pid, found.name, found.halted, found.parent, found.started) == (42, "VLLM) (x", True, 1, 77)
    assert (found.cpu_s, found.resident) == (3.0, 500 * 4096)
    put(tmp_path, "/proc/42/stat", stat_line(42, "sshd"))
    put(tmp_path, "/proc/43/stat", stat_line(43, "sshd", state="Z"))
    roots = Roots(str(tmp_path))
    assert read_process(roots, 43) is None
    assert [one.pid for one in named(roots, "sshd")] == [42]


@given(st.text(max_size=200))
def test_any_status_is_read_or_refused(text: str) -> None:
    try:
        parse_stat(text)
    except ValueError:
        return
