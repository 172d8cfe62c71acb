"""What hangs or is refused when a node is in trouble does not take the guard along."""

from __future__ import annotations

import os

import pytest

from glmspark.guard import supervise
from glmspark.guard.gpu import GpuReader


class Stuck:
    """A process that closed its output and does not end, as one does that waits for the driver."""

    def __init__(self) -> None:
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        raise AssertionError("the guard would wait for ever")

    def kill(self) -> None:
        return


def test_a_query_that_does_not_end_is_not_waited_for() -> None:
    reader, stuck = GpuReader(["nvidia-smi"]), Stuck()
    handle, other = os.openpty()
    os.set_blocking(handle, False)
    reader._process, reader._handle, reader._begun = stuck, handle, 0.0  # type: ignore[assignment]
    os.write(other, b"0, 1, 5.5, 208, 40, [N/A], [N/A]\n")
    assert [one.power_w for one in reader.read(1.0)] == [5.5]
    assert reader.read(20.0) == []
    assert "said nothing for 19 s" in str(reader.problem)
    os.close(other)
    assert reader.read(21.0) == []
    assert "does not end" in str(reader.problem)
    assert reader.read(500.0) == []  # no second one beside it
    stuck.code = -9
    reader._argv = ["/nowhere/nvidia-smi"]
    reader.read(501.0)
    assert reader._ending is None


def test_a_full_disk_and_no_memory_do_not_end_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def start(argv: list[str]) -> int:
        begun.append(1)
        if len(begun) < 3:
            raise OSError(12, "Cannot allocate memory")
        raise KeyboardInterrupt

    monkeypatch.setattr(supervise, "_start", start)
    monkeypatch.setattr(supervise, "_pause", lambda seconds, over: None)
    monkeypatch.setattr(supervise.signal, "signal", lambda *_: None)
    monkeypatch.setattr("os.write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(KeyboardInterrupt):
        supervise.supervise("/nowhere")
    assert len(begun) == 3
