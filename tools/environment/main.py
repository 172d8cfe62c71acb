"""Bring the environment from whatever state it is in to the one that pyproject.toml asks for."""

import argparse
import errno
import json
import os
import platform
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tools.environment import audit, machine
from tools.environment import venv as place
from tools.environment.pip import (
    FAMILY,
    TORCH_INDEX,
    TORCH_INDEX_VARIABLE,
    Progress,
    SetUpError,
    ask_for_torch,
    explain,
    install,
    install_checkout,
    no_torch,
    torch_source,
    uninstall,
)
from tools.environment.running import Screen
from tools.environment.running import run as run_command
from tools.environment.wanted import Stamp, Wanted, drop_stamp, load_stamp, read, save_stamp, why_not_ready

ROOT = Path(__file__).resolve().parents[2]
LOG = "bootstrap.log"
TEMPORARY = "tmp"
FINAL_CHECK = (
    "import glmspark, torch, transformers, vllm\n"
    "from vllm.platforms import current_platform\n"
    "assert current_platform.device_type == 'cpu', current_platform\n"
    "print('vllm', vllm.__version__, 'torch', torch.__version__, 'transformers', transformers.__version__)\n"
)


def _ignore(line: str) -> None:
    """For commands whose output says nothing about progress."""


class SetUp:
    """One run of the set-up; each method is a step and may be repeated at no harm."""

    def __init__(self, root: Path, venv: Path, chosen: str | None) -> None:
        self.root, self.venv, self.chosen = root, venv, chosen
        self.python = place.python_of(venv)
        self.log = venv / LOG
        self.screen = Screen()
        self.wanted: Wanted = read(root)
        self.lock = -1

    def reason(self) -> str | None:
        """Why there is work to do; None when the environment stands. Costs one start of its Python."""
        version = place.version_of(self.python)
        if version is None:
            broken = self.python.is_symlink()
            return "its Python does not start" if broken else "not set up yet, or interrupted"
        if place.moved_from(self.venv):
            return f"it was moved here from {place.moved_from(self.venv)}"
        if self.chosen and version != self.chosen:
            return f"it has Python {version}, and {self.chosen} was asked for"
        present = {info.name for info in audit.infos(place.site_packages(self.venv))}
        return why_not_ready(load_stamp(self.venv), self.wanted, self.root, version, present)

    def run(self) -> None:
        """Do all that is left to do.

        Raises:
            SetUpError: it cannot be done; running again goes on from where it stopped.
        """
        machine.check(make=place.whose(self.venv) == "free" or place.configured_version(self.venv) is None)
        if not (place.site_packages(self.venv) / "torch").is_dir():
            machine.check_room(self.venv)
        with place.locked(self.venv, self.screen.say) as self.lock:
            why = self.reason()
            if why is None:
                return
            start = time.monotonic()
            self.screen.say(f"setting up {self.venv}: {why}")
            # From here on it is not whole; should this be killed, the next run must not believe an old stamp.
            drop_stamp(self.venv)
            self.make_venv()
            self.mend()
            index = self.find_torch()
            self.install(index)
            removed = self.remove_breaking()
            self.prove()
            shutil.rmtree(self.venv / TEMPORARY, ignore_errors=True)
            self.stamp(removed, time.monotonic() - start)
            self.screen.say(f"the environment stands (log: {self.log})")

    def make_venv(self) -> None:
        """Make the environment, or make it anew when it is ours and beyond mending."""
        owner = place.whose(self.venv)
        if owner == "other":
            raise SetUpError(
                "the folder is in use and is no Python environment; nothing in it was touched",
                where=str(self.venv),
                next="remove it, or name another place: GLMSPARK_VENV=/some/venv make serve",
            )
        wrong = None if owner == "free" else place.state(self.venv, self.chosen)
        if owner == "theirs" and wrong == place.NO_PIP:
            # Other tools make environments without pip; adding it harms nothing.
            self._try([str(self.python), "-I", "-m", "ensurepip", "--default-pip"], "adding pip")
            wrong = place.state(self.venv, self.chosen)
        if wrong is None and owner != "free":
            return
        if owner == "theirs":
            raise SetUpError(
                f"this environment cannot be used: {wrong}. It was not made here, so it was left alone",
                where=str(self.venv),
                next="remove it and run the same command again, or name another place with GLMSPARK_VENV",
            )
        machine.check(make=True)
        if owner == "ours":
            if (self.venv / "pyvenv.cfg").exists():
                self.screen.say(f"making the environment anew: {wrong}")
            place.empty(self.venv)
        place.mark(self.venv)
        self.screen.say(f"making an environment with Python {platform.python_version()}")
        self._run(
            [sys.executable, "-I", "-m", "venv", str(self.venv)],
            "making the environment",
        )

    def mend(self) -> None:
        """Clear away what a killed pip left half done, so that pip writes it again."""
        site = place.site_packages(self.venv)
        faults, rests = audit.broken(site), audit.leftovers(site)
        for info, fault in faults.items():
            self.screen.say(
                f"{info.name.removesuffix(audit.INFO)} is not whole ({fault}); it is installed again"
            )
        audit.mend(faults, rests)
        shutil.rmtree(self.venv / TEMPORARY, ignore_errors=True)

    def find_torch(self) -> str | None:
        """Ask pip for the CPU engine's torch build.

        Returns:
            None when pip finds it in the sources it knows by itself, else the index to name.

        Raises:
            SetUpError: it is nowhere to be found.
        """
        torch = self.wanted.torch
        if (place.site_packages(self.venv) / f"torch-{torch}.dist-info").is_dir():
            return None
        index = os.environ.get(TORCH_INDEX_VARIABLE) or TORCH_INDEX
        said = []
        for source in (None, index):
            report = self.venv / "torch-report.json"
            report.unlink(missing_ok=True)
            question = ask_for_torch(self.python, torch, report, source)
            step = f"asking pip where torch {torch} is"
            progress = Progress(step)
            code, output = self._try(question, step, progress.see, partial(progress.words, 0))
            found = torch_source(report.read_text(), torch) if code == 0 and report.is_file() else None
            report.unlink(missing_ok=True)
            if found:
                origin = f"in {source}" if source else "in the sources that pip knows by itself"
                self.screen.say(f"torch {torch} found {origin}")
                return source
            said.append(output)
            if code != 0 and re.search("No space left|CERTIFICATE_VERIFY|ProxyError", output):
                raise explain(output, code, step=step, venv=self.venv, log=self.log)
        here = f"Python {place.version_of(self.python)} on {sys.platform} {platform.machine()}"
        raise no_torch(torch, *said, index=index, machine=here)

    def install(self, index: str | None) -> None:
        """Install all packages, then put the checkout in place."""
        progress = Progress()
        site = place.site_packages(self.venv)
        before = len(audit.infos(site))

        def doing() -> str:
            return progress.words(len(audit.infos(site)) - before)

        self.screen.say(f"installing {self.wanted.engine} and what it needs")
        self._run(
            install(self.python, self.wanted.requirements, index),
            f"installing {self.wanted.engine} and what it needs",
            see=progress.see,
            doing=doing,
        )
        self._run(install_checkout(self.python, self.root), "putting glmspark in place")

    def remove_breaking(self) -> dict[str, str]:
        """Take out the packages of PyTorch's family that break when imported with this torch."""
        command = [str(self.python), "-I", str(Path(__file__).with_name("probe.py")), *FAMILY]
        step = "trying the packages around torch"
        self.screen.passing(step)
        code, output = self._try(command, step)
        if code != 0:
            raise SetUpError(
                f"torch does not import: {_last(output)}",
                where=f"{step}; see {self.log}",
                next=_remake(self.venv),
            )
        failures: dict[str, str] = json.loads(_last(output))["failures"]
        if failures:
            names = ", ".join(failures)
            self.screen.say(f"taking out {names}: made for another torch, and not needed for text")
            self._run(uninstall(self.python, list(failures)), "taking out what breaks")
        return failures

    def prove(self) -> None:
        """Import the engine in the environment's own Python; only what imports is called done."""
        step = "importing the engine once"
        code, output = self._try([str(self.python), "-I", "-c", FINAL_CHECK], step)
        if code != 0:
            raise SetUpError(
                f"the engine does not import: {_last(output)}",
                where=f"{step}; see {self.log}",
                next=_remake(self.venv),
            )
        self.screen.say(_last(output))

    def stamp(self, removed: dict[str, str], seconds: float) -> None:
        """Say, last of all, that all is done."""
        names = tuple(info.name for info in audit.infos(place.site_packages(self.venv)))
        version = place.version_of(self.python) or ""
        save_stamp(
            self.venv,
            Stamp(self.wanted.digest, str(self.root), version, names, dict(removed), round(seconds, 1)),
        )

    def _try(
        self,
        command: list[str],
        step: str,
        see: Callable[[str], None] = _ignore,
        doing: Callable[[], str] | None = None,
    ) -> tuple[int, str]:
        temporary = self.venv / TEMPORARY
        temporary.mkdir(exist_ok=True)
        # pip unpacks in here, so that what a killed one leaves is found and removed. A person's settings that
        # send packages elsewhere do not hold here; their indexes, proxies and certificates do.
        environment = {
            **os.environ,
            "TMPDIR": str(temporary),
            "PIP_USER": "0",
            "VLLM_NO_USAGE_STATS": "1",
        }
        for variable in ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT"):
            environment.pop(variable, None)
        return run_command(
            command,
            log=self.log,
            screen=self.screen,
            see=see,
            doing=doing or (lambda: step),
            environment=environment,
            keep=(self.lock,),
        )

    def _run(
        self,
        command: list[str],
        step: str,
        see: Callable[[str], None] = _ignore,
        doing: Callable[[], str] | None = None,
    ) -> None:
        code, output = self._try(command, step, see, doing)
        if code != 0:
            raise explain(output, code, step=step, venv=self.venv, log=self.log)


def _last(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


def _remake(venv: Path) -> str:
    return f"remove {venv} and run the same command again; if it stays, the last lines of the log say why"


def _stop(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(number)


def run(arguments: list[str]) -> int:
    """The command line of tools/bootstrap.py; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="tools/bootstrap.py",
        description="Make or mend the environment that glmspark's local engine and tests run in.",
        epilog="example: GLMSPARK_VENV=/var/tmp/venv python3 tools/bootstrap.py",
    )
    parser.add_argument(
        "--exact-python", action="store_true", help="the environment must have this Python's version"
    )
    options = parser.parse_args(arguments)
    chosen = f"{sys.version_info[0]}.{sys.version_info[1]}" if options.exact_python else None
    venv = Path(os.environ.get("GLMSPARK_VENV") or ROOT / ".venv").absolute()
    signal.signal(signal.SIGTERM, _stop)
    try:
        setup = SetUp(ROOT, venv, chosen)
        if setup.reason() is not None:
            setup.run()
    except SetUpError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    except OSError as error:
        what = "the disk is full" if error.errno == errno.ENOSPC else f"{error.strerror or error}"
        print(
            SetUpError(
                what, where=str(error.filename or venv), next="mend that, then run the same command again"
            ),
            file=sys.stderr,
        )
        return 1
    return 0
