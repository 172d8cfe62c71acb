"""A process that prints and behaves like a rank, for tests of what supervises ranks. It answers no question.

    python pretend_rank.py RANK BEHAVIOUR [PORT]

It prints vLLM's lines, starts a child that is titled like a worker, and then does as told.
"""

from __future__ import annotations

import http.server
import signal
import subprocess
import sys
import time
from multiprocessing import shared_memory

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


class Health(http.server.BaseHTTPRequestHandler):
    """Answers every GET with 200."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


def main() -> None:
    """Pretend until told to stop."""
    rank, behaviour = int(sys.argv[1]), sys.argv[2]
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    segment = shared_memory.SharedMemory(create=True, size=4096)
    print(f"segment {segment.name}", flush=True)
    for line in LINES:
        print(line, flush=True)
    worker = subprocess.Popen(
        [f"VLLM::Worker_TP{rank}", "-c", "import time; time.sleep(600)"], executable=sys.executable
    )
    print(f"worker {worker.pid}", flush=True)

    def end(*_: object) -> None:
        worker.terminate()
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
        server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[3])), Health)
        print(SERVING, flush=True)
        server.serve_forever()
    time.sleep(600)


if __name__ == "__main__":
    main()
