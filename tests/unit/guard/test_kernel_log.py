"""The kernel's log: which lines count, and how they are followed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.guard.kernel_log import KernelLog, parse_record

# As people posted them; https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1358 for the first.
LINES = {
    "NVRM: nvCheckOkFailedNoLog: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)": "nvrm-no-memory",
    "NVRM: Xid (PCI:000f:01:00): 13, pid=4711, Graphics Exception": "xid",
    "Out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB": "oom-kill",
    "Memory cgroup out of memory: Killed process 12 (python3) total-vm:1kB": "oom-kill",
    "pcieport 0000:00:00.0: AER: Corrected error received: 0000:01:00.0": "pcie-aer",
    "mlx5_core 0000:01:00.0 enp1s0f0np0: Link down": "link-flap",
    "mlx5_core 0000:01:00.0: wait_func:1158:(pid 1): ENABLE_HCA(0x104) timeout. Will cause a leak": None,
    "mlx5_core 0000:01:00.0: cmd_work_handler:877: timeout": "link-flap",
    "wifi: port 2(n2w) entered forwarding state": None,
    "NVRM: loading NVIDIA UNIX Open Kernel Module": None,
}


@pytest.mark.parametrize(("line", "kind"), LINES.items())
def test_lines_by_kind(line: str, kind: str | None) -> None:
    found = parse_record(f"3,10350,19824075984,-;{line}\n SUBSYSTEM=pci\n")
    assert (found.kind if found else None) == kind
    if found:
        assert found.at == pytest.approx(19824.075984)
        assert found.line == line


@pytest.mark.parametrize("stamp", ["[ 8123.456789] ", "[8123.456789] spark1 kernel: "])
def test_lines_of_dmesg_and_journalctl(stamp: str) -> None:
    found = parse_record(stamp + next(iter(LINES)))
    assert found is not None
    assert found.kind == "nvrm-no-memory"
    assert found.at == pytest.approx(8123.456789)


@given(st.text(max_size=200))
def test_any_text_is_an_event_or_none(text: str) -> None:
    found = parse_record(text)
    assert found is None or len(found.line) <= 500


def test_a_growing_file_is_followed_from_now_on(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("NVRM: Xid (PCI:1): 13\n")
    log = KernelLog(str(path))
    assert log.read() == []
    with path.open("a") as file:
        file.write("3,1,5000000,-;NVRM: Xid (PCI:1): 31\nNVRM: NV_ERR_NO_")
        file.flush()
        assert [(one.kind, one.at) for one in log.read()] == [("xid", 5.0)]
        file.write("MEMORY\n")
    assert [one.kind for one in log.read()] == ["nvrm-no-memory"]
    log.close()


def test_a_file_that_comes_later_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = KernelLog(str(tmp_path / "kmsg"))
    assert log.read() == []
    (tmp_path / "kmsg").write_text("NVRM: Xid (PCI:1): 13\n")
    log.read()
    assert [one.kind for one in log.read()] == ["xid"]
    log.close()
