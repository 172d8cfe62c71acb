"""A process that prints and behaves like a rank, for tests of what supervises ranks. It answers no question.

    python pretend_rank.py RANK BEHAVIOUR [PORT]

It prints vLLM's lines, starts a child that is titled like a worker, and then does as told.
"""

from __future__ import annotations

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


def serve(port: int) -> None:
    """Answer every GET with 200."""
    import http.server  # here: only one rank of several serves

    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Health)
    print(SERVING, flush=True)
    server.serve_forever()


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
        [f"VLLM::Worker_TP{rank}", "-S", "-c", "import time; time.sleep(600)"], executable=sys.executable
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
        serve(int(sys.argv[3]))
    time.sleep(600)


if __name__ == "__main__":
    main()
