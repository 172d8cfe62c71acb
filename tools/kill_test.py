"""Kill `make serve` with SIGKILL at random points; after each, `make serve` must work as if nothing had been.

    python3 tools/kill_test.py                    # five points over the whole first start (10 to 25 minutes)
    python3 tools/kill_test.py --stands           # the environment stays: points of `glmspark up` alone
    python3 tools/kill_test.py --rounds 20 --seed 7

It works on a clone of this checkout's last commit in a temporary folder, with a state folder and a port of
its own; the deployments that run here are not touched. The points are spread: one at random in each part of
the time that a whole start takes. Half of the rounds kill all that `make` started, half kill `make` alone, as
`kill -9` by hand does. Exit status 0 when every round ended with a proven deployment, answered a question and
left nothing behind after `glmspark down`.
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATE = "GLMSPARK_STATE_DIR"
LIMIT_S = 1200.0
QUESTION = "What is 2+2? Answer in one word:"


class FailedError(Exception):
    """What a round must not show."""


@dataclass(frozen=True)
class Place:
    """A clone to work on, its environment variables and its port."""

    folder: Path
    variables: dict[str, str]
    port: int

    @property
    def venv(self) -> Path:
        return self.folder / ".venv"

    @property
    def state(self) -> Path:
        return Path(self.variables[STATE])

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the clone's glmspark."""
        program = [str(self.venv / "bin" / "glmspark"), *words]
        return subprocess.run(
            program, env=self.variables, capture_output=True, text=True, check=False, timeout=120
        )


def make_place(folder: Path) -> Place:
    """Clone the checkout's last commit."""
    clone = folder / "checkout"
    subprocess.run(["git", "clone", "--quiet", "--no-local", str(ROOT), str(clone)], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("GLMSPARK_", "MAKE"))
    }
    return Place(clone, {**variables, STATE: str(folder / "state")}, port)


def serve(place: Place, log: Path) -> subprocess.Popen[bytes]:
    """Start `make serve` in a process group of its own."""
    with log.open("ab") as out:
        return subprocess.Popen(
            ["make", "serve", f"ARGS=--port {place.port}"],
            cwd=place.folder,
            env=place.variables,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def serve_to_the_end(place: Place, log: Path) -> float:
    """Run `make serve` and check what it promises; seconds it took."""
    begin = time.monotonic()
    process = serve(place, log)
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, signal.SIGKILL)
        raise FailedError(f"make serve did not end within {LIMIT_S:.0f} s; see {log}") from error
    taken = time.monotonic() - begin
    if code != 0:
        raise FailedError(f"make serve ended with {code}; see {log}")
    status = place.command("status", "--json")
    if status.returncode != 0:
        raise FailedError(f"glmspark status says {status.stdout or status.stderr}")
    (deployment,) = [one for one in json.loads(status.stdout) if one["state"] == "ready"]
    answer = ask(deployment["endpoint"], deployment["model"])
    if not any(word in answer.lower() for word in ("4", "four")):
        raise FailedError(f"the deployment answers {answer!r} to {QUESTION!r}")
    return taken


def ask(endpoint: str, model: str) -> str:
    """The deployment's answer to a question whose answer is known."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 64,
    }
    request = urllib.request.Request(  # noqa: S310 (http, to this machine)
        f"{endpoint}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as reply:
        return str(json.load(reply)["choices"][0]["message"]["content"])


def ours(place: Place) -> list[int]:
    """Processes that carry this test's state folder in their environment."""
    mark = f"{STATE}={place.state}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def shared_memory() -> set[str]:
    """The names of the shared memory segments on this machine."""
    return {path.name for path in Path("/dev/shm").iterdir()}  # noqa: S108 (that is where Linux has them)


def take_down(place: Place, shared: set[str]) -> None:
    """Stop the deployment and look for what it may have left."""
    done = place.command("down")
    if done.returncode != 0:
        raise FailedError(f"glmspark down ended with {done.returncode}: {done.stderr}")
    left = ours(place)
    if left:
        raise FailedError(f"after glmspark down these processes are left: {left}")
    files = shared_memory() - shared
    if files:
        raise FailedError(f"after glmspark down this is left in /dev/shm: {sorted(files)}")


def one_round(place: Place, log: Path, after: float, *, whole_group: bool, keep: bool) -> tuple[str, float]:
    """Kill one start after some seconds, then start again; where that was, and seconds the second took."""
    if not keep:
        shutil.rmtree(place.venv, ignore_errors=True)
    shutil.rmtree(place.state, ignore_errors=True)
    shared = shared_memory()
    process = serve(place, log)
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        kill = os.killpg if whole_group else os.kill
        kill(process.pid, signal.SIGKILL)
    else:
        # This start was faster than the one that was measured.
        take_down(place, shared)
        return one_round(place, log, after * 0.6, whole_group=whole_group, keep=keep)
    process.wait()
    lines = log.read_text(errors="replace").strip().splitlines()
    where = f"{after:.1f} s: {lines[-1].strip() if lines else 'nothing said yet'}"
    taken = serve_to_the_end(place, log.with_suffix(".again"))
    take_down(place, shared)
    return where, taken


def main() -> int:
    """Run the rounds and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="of the points (default: the time)"
    )
    parser.add_argument(
        "--stands", action="store_true", help="keep the environment: kill `glmspark up` alone"
    )
    parser.add_argument(
        "--folder", type=Path, help="where to work (default: a temporary folder, removed after)"
    )
    options = parser.parse_args()
    draw = random.Random(options.seed)
    folder = Path(tempfile.mkdtemp(prefix="glmspark-kill.", dir=options.folder))
    print(f"working in {folder}, seed {options.seed}", flush=True)
    place = make_place(folder)
    shared = shared_memory()
    failed = 0
    try:
        whole = serve_to_the_end(place, folder / "whole.log")
        take_down(place, shared)
        print(f"a whole first start takes {whole:.0f} s", flush=True)
        if options.stands:
            whole = serve_to_the_end(place, folder / "warm.log")
            take_down(place, shared)
            print(f"a start with the environment in place takes {whole:.0f} s", flush=True)
        for number in range(options.rounds):
            after = whole * (number + draw.random()) / options.rounds
            whole_group = number % 2 == 0
            told = f"round {number + 1}: {'all' if whole_group else 'make alone'} killed"
            try:
                log = folder / f"round{number + 1}.log"
                where, taken = one_round(place, log, after, whole_group=whole_group, keep=options.stands)
            except FailedError as error:
                failed += 1
                print(f"{told}: FAILED: {error}", flush=True)
                place.command("down")
            else:
                print(f"{told} at {where}; then ready in {taken:.0f} s", flush=True)
    except FailedError as error:
        failed += 1
        print(f"FAILED before the first round: {error}")
        place.command("down")
    if failed:
        print(f"{failed} failed; logs are in {folder}")
        return 1
    shutil.rmtree(folder)
    print(f"{options.rounds} of {options.rounds} rounds: make serve worked after the kill")
    return 0


if __name__ == "__main__":
    sys.exit(main())
