"""A process that prints and behaves like a rank, for tests of what supervises ranks. It answers no question.

    python pretend_rank.py RANK BEHAVIOUR [PORT]

It prints vLLM's lines, starts a child that is titled like a worker (for "serves alone" like no worker), and
then does as told. Tests start many of them, so it imports little.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time

LINES = (
    "INFO 01-02 03:04:05 [model.py:733] Resolved architecture: GlmMoeDsaForCausalLM",
    "INFO 01-02 03:04:06 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='/m'",
    "INFO 01-02 03:04:07 [p.py:1906] world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://a:1",
)
LOADED = (
    "INFO 01-02 03:04:08 [cpu_model_runner.py:68] Starting to load model /m...",
    "INFO 01-02 03:04:09 [default_loader.py:501] Loading weights took 0.06 seconds",
)
SERVING = "INFO:     Application startup complete."


def serve(port: int) -> None:
    """Answer every GET with 200 and everything else with 501."""
    import socket  # here: only one rank of several serves
    import threading

    def answer(client: socket.socket) -> None:
        with client, client.makefile("rb") as asked:
            head, size = asked.readline(), 0
            while (line := asked.readline().lower()) not in (b"\r\n", b""):
                if line.startswith(b"content-length:"):
                    size = int(line.partition(b":")[2])
            asked.read(size)
            status = b"200 OK" if head.startswith(b"GET ") else b"501 Unsupported method"
            client.sendall(b"HTTP/1.0 " + status + b"\r\n\r\n")

    with socket.create_server(("127.0.0.1", port)) as server:
        print(SERVING, flush=True)
        while True:
            threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()


def make_segment(tracked: bool) -> tuple[str, object]:
    """Shared memory under a name of Python's: the name, and what keeps it open, for the worker as well.

    tracked: by Python, with its resource tracker as a further process.
    """
    if tracked:
        from multiprocessing import shared_memory

        segment = shared_memory.SharedMemory(create=True, size=4096)
        return segment.name, segment
    name = f"psm_{os.getpid()}_{time.monotonic_ns():x}"
    handle = os.open(f"/dev/shm/{name}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.ftruncate(handle, 4096)
    os.set_inheritable(handle, True)
    return name, mmap.mmap(handle, 4096)  # as vLLM has it, and as the agent finds it


def main() -> None:
    """Pretend until told to stop."""
    rank, behaviour = int(sys.argv[1]), sys.argv[2]
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    name, _kept = make_segment(tracked=behaviour == "stubborn")
    print(f"segment {name}", flush=True)
    for line in LINES:
        print(line, flush=True)
    title = "VLLM::EngineCore" if behaviour == "serves alone" else f"VLLM::Worker_TP{rank}"
    sleeps = [title, "-S", "-c", "import time; time.sleep(600)"]
    worker = os.posix_spawn(sys.executable, sleeps, os.environ)
    print(f"worker {worker}", flush=True)

    def end(*_: object) -> None:
        os.kill(worker, signal.SIGTERM)
        sys.exit(0)

    if behaviour != "stubborn":
        signal.signal(signal.SIGTERM, end)
    if behaviour == "joins forever":
        time.sleep(600)
    if behaviour == "breaks":
        time.sleep(0.3)
        raise ValueError("the weights of layer 3 are missing")
    for line in LOADED:
        print(line, flush=True)
    if behaviour == "loads forever":
        time.sleep(600)
    if rank == 0:
        serve(int(sys.argv[3]))
    time.sleep(600)


if __name__ == "__main__":
    main()
