"""pip's commands and pip's answers: every function here is pure; main.py runs and asks."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

# PyTorch's public index of CPU builds. Asked only when the sources that pip knows by itself lack the build.
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# Where an office keeps a copy of that index.
TORCH_INDEX_VARIABLE = "GLMSPARK_TORCH_INDEX"
# Packages of PyTorch's family that the CPU engine asks for and that a text model does not need. Builds for
# another torch come along from indexes without `+cpu` builds, and break `import transformers`.
FAMILY = ("torchvision", "torchaudio", "torchcodec")


class SetUpError(Exception):
    """The environment cannot be made.

    Attributes:
        what: what was seen.
        where: the step, file or address.
        next: what to do.
    """

    def __init__(self, what: str, *, where: str, next: str) -> None:  # noqa: A002 (the message's own word)
        super().__init__(what)
        self.what, self.where, self.next = what, where, next

    def __str__(self) -> str:
        return f"error: {self.what}\n  where: {self.where}\n  next:  {self.next}"


def pip(python: Path, *arguments: str) -> list[str]:
    """The command that runs the environment's pip.

    A refused connection is tried twice more, not five times: with a hundred packages to fetch, an offline
    machine should say so within seconds.
    """
    options = ["--disable-pip-version-check", "--no-input", "--retries", "2"]
    return [str(python), "-I", "-m", "pip", *options, *arguments]


def ask_for_torch(python: Path, torch: str, report: Path, index: str | None) -> list[str]:
    """The question whether pip finds this very build, put so that nothing is installed."""
    extra = ["--extra-index-url", index] if index else []
    return pip(
        python, "install", "--dry-run", "--no-deps", "--ignore-installed", "--only-binary", "torch",
        *extra, "--progress-bar", "off", "--report", str(report), f"torch=={torch}",
    )  # fmt: skip


def torch_source(report: str, torch: str) -> str | None:
    """The address of the build in pip's report; None when the report names another build or none."""
    try:
        for item in json.loads(report)["install"]:
            if item["metadata"]["name"].lower() == "torch" and item["metadata"]["version"] == torch:
                return str(item["download_info"]["url"])
    except (ValueError, KeyError, TypeError):
        return None
    return None


def install(python: Path, requirements: Sequence[str], index: str | None) -> list[str]:
    """The command that installs everything but the checkout itself."""
    extra = ["--extra-index-url", index] if index else []
    return pip(python, "install", *extra, "--progress-bar", "off", *requirements)


def install_checkout(python: Path, root: Path) -> list[str]:
    """The command that puts the checkout in place, editable; it needs no network."""
    return pip(
        python, "install", "--no-deps", "--no-build-isolation", "--progress-bar", "off", "-e", str(root)
    )


def uninstall(python: Path, packages: Sequence[str]) -> list[str]:
    """The command that takes packages out."""
    return pip(python, "uninstall", "-y", *packages)


@dataclass
class Progress:
    """What pip is doing, told by the lines it prints."""

    doing: str = "asking for package lists"
    unpacking: tuple[str, ...] = ()

    def words(self, done: int) -> str:
        """What is being done when `done` packages are unpacked; pip unpacks in the order it printed."""
        if not self.unpacking:
            return self.doing
        done = min(max(done, 0), len(self.unpacking) - 1)
        return f"unpacking {self.unpacking[done]} ({done + 1} of {len(self.unpacking)})"

    def see(self, line: str) -> None:
        """Take in one line of pip's output."""
        word, _, rest = line.strip().partition(" ")
        if word == "Collecting":
            self.doing = f"looking up {rest.split(' (from')[0]}"
        elif word == "Downloading":
            self.doing = f"downloading {_file(rest)}"
        elif line.strip().startswith("Using cached "):
            self.doing = f"taking {_file(rest.partition(' ')[2])} from pip's cache"
        elif word == "Processing":
            self.doing = f"taking {_file(rest)}"
        elif line.startswith("Installing collected packages: "):
            self.unpacking = tuple(line.partition(": ")[2].strip().split(", "))
        elif "is looking at multiple versions" in line:
            self.doing = "trying which versions fit together"


def _file(text: str) -> str:
    """`torch 2.13.0+cpu (181.1 MB)` for what pip prints as an address, a path or a file name."""
    name, _, size = text.split(" (from ", maxsplit=1)[0].partition(" ")
    name = name.rsplit("/", 1)[-1].removesuffix(".metadata")
    parts = name.removesuffix(".whl").split("-")
    if name.endswith(".whl") and len(parts) >= 5:
        name = f"{parts[0]} {parts[1]}"
    return f"{name} {size}".strip()


_SILENCE = "|".join(
    (
        "Failed to establish a new connection",
        "Failed to resolve",
        "Temporary failure in name resolution",
        "Name or service not known",
        "Network is unreachable",
        "Read timed out",
        "ConnectTimeoutError",
    )
)
# What pip prints, what it means, and what to do; the first that is found counts. The order matters: a machine
# without a network also finds "no matching distribution".
_MEANINGS = (
    (
        r"No space left on device|Errno 28",
        "the disk is full",
        "free some space for {venv}, then run the same command again: it goes on from here",
    ),
    (
        r"SSLCertVerificationError|CERTIFICATE_VERIFY_FAILED",
        "the package index's certificate is not trusted here",
        "a company proxy? give pip its certificate: PIP_CERT=/path/to/ca.pem",
    ),
    (
        r"ProxyError|Tunnel connection failed|407 Proxy",
        "the proxy refused the connection",
        "check HTTPS_PROXY and `pip config list`",
    ),
    (
        _SILENCE,
        "no connection to {hosts}",
        "connect this machine or point pip at an index it can reach, then run the same command again",
    ),
    (
        r"requires a different Python",
        "a package has no build for this Python",
        "use Python 3.11 to 3.13: make serve PYTHON=python3.12",
    ),
    (
        r"DO NOT MATCH THE HASHES",
        "a download arrived damaged or is not what the index promised",
        "run the same command again; if it stays, empty pip's cache (`pip cache purge`)",
    ),
    (
        r"ResolutionImpossible",
        "pip finds no set of versions that fits together",
        "a constraint on this machine may forbid one (`pip config list`); pip's words are in {log}",
    ),
    (
        r"Permission denied|Errno 13",
        "a file may not be written",
        "is {venv} yours? remove it if it was made by another user",
    ),
)


def missing_package(output: str) -> str | None:
    """The requirement that pip could not find, as it printed it."""
    found = re.search(r"No matching distribution found for ([^\n(]+)", output)
    return found.group(1).strip() if found else None


def unreachable(output: str) -> list[str]:
    """The hosts or index paths that did not answer."""
    hosts = re.findall(r"host='([^']+)'", output)
    paths = [] if hosts else re.findall(r"Retrying .*: (/\S+)", output)
    return list(dict.fromkeys(hosts or paths))


def silent(index: str, output: str) -> bool:
    """Whether this index did not answer. Newer pips name the host, older ones the path alone."""
    address = urlsplit(index)
    return any(
        seen == address.hostname or seen.startswith(address.path + "/") for seen in unreachable(output)
    )


def explain(output: str, code: int, *, step: str, venv: Path, log: Path) -> SetUpError:
    """Turn pip's last words into one error.

    Args:
        output: what the run printed.
        code: its exit status; negative for the signal that ended it.
        step: what was being done.
        venv: the environment.
        log: where all of the output is.
    """
    package = missing_package(output)
    where = f"{step}; pip's output is in {log}"
    for pattern, what, remedy in _MEANINGS:
        if re.search(pattern, output):
            hosts = ", ".join(unreachable(output)) or "the package index"
            text = what.format(hosts=hosts) + (f" ({package} was wanted)" if package else "")
            return SetUpError(text, where=where, next=remedy.format(venv=venv, log=log))
    if package:
        return SetUpError(
            f"no source that pip knows carries {package} for this Python and this machine",
            where=where,
            next="see `pip config list` for the sources; a mirror may lack it",
        )
    if code == -9:
        return SetUpError(
            "pip was killed, most likely for want of memory",
            where=where,
            next="free some memory and run the same command again: it goes on from here",
        )
    last = next((line for line in reversed(output.splitlines()) if line.strip()), f"exit status {code}")
    return SetUpError(f"the command failed: {last.strip()}", where=where, next=f"read {log}")


def no_torch(torch: str, plain: str, with_index: str, *, index: str, machine: str) -> SetUpError:
    """The error for a torch build that neither pip's own sources nor PyTorch's index gives.

    Args:
        torch: the build wanted.
        plain: what pip printed when asked without the index.
        with_index: what it printed when asked with it.
        index: the index's address.
        machine: this Python and machine, in words.
    """
    own_silent, index_silent = bool(unreachable(plain)), silent(index, with_index)
    own = "did not answer" if own_silent else "do not carry it"
    theirs = "did not answer" if index_silent else "does not carry it"
    remedy = "use Python 3.11 to 3.13 on x86_64 or aarch64: make serve PYTHON=python3.12"
    if index_silent:
        remedy = "connect this machine to the network" if own_silent else f"let this machine reach {index}"
    return SetUpError(
        f"torch {torch} is missing: the CPU engine needs this very build, for {machine}",
        where=f"the package sources that pip knows by itself {own}; {index} {theirs}",
        next=f"{remedy}; or put the wheel torch-{torch}-*.whl in a folder and set PIP_FIND_LINKS to it; "
        f"or name another index of PyTorch builds in {TORCH_INDEX_VARIABLE}",
    )
