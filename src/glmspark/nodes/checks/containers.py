"""Whether containers with the GPU can run."""

from __future__ import annotations

from glmspark.nodes.checks import Expected, Judge, Verdict
from glmspark.nodes.facts.docker import ENGINE
from glmspark.nodes.facts.login import USER
from glmspark.nodes.facts.nvidia import GPUS, TOOLKIT
from glmspark.nodes.survey import Facts


def engine(facts: Facts, expected: Expected) -> Verdict | None:
    """The user may talk to a Docker Engine that can hand the GPU on."""
    if expected.runtime != "docker":
        return None
    judge = Judge("Docker Engine", facts.node)
    found = facts.get(ENGINE)
    if found is None or not found.version:
        seen = (found.problem if found else "") or facts.problem(ENGINE) or "no answer"
        user = facts.get(USER)
        if "permission denied" in seen.lower():
            name = user.name if user else "$USER"
            return judge.blocked(seen, f"on the node: sudo usermod -aG docker {name}, then connect anew")
        return judge.blocked(seen, "on the node: sudo systemctl enable --now docker (or install docker-ce)")
    gpus = facts.get(GPUS)
    if "/snap/" in found.root and gpus:
        return judge.blocked(
            f"{found.version} from a snap ({found.root}), which cannot hand on the GPU's programs",
            "remove the snap and install docker-ce: sudo snap remove docker",
        )
    return judge.ok(f"{found.version}, {found.driver}, {found.root}")


def toolkit(facts: Facts, expected: Expected) -> Verdict | None:
    """The NVIDIA container toolkit is there and the engine knows it, where there is a GPU."""
    if expected.runtime != "docker" or not facts.get(GPUS):
        return None
    judge = Judge("container toolkit", facts.node)
    found, version = facts.get(ENGINE), facts.get(TOOLKIT)
    if found is None or not found.version:
        return judge.unread(facts, ENGINE)
    if version is None:
        return judge.blocked(
            facts.problem(TOOLKIT) or "not found",
            "on the node: sudo apt-get install nvidia-container-toolkit",
        )
    if "nvidia" not in found.runtimes and not found.cdi:
        return judge.blocked(
            f"toolkit {version} is there, but Docker has neither its runtime nor a CDI device",
            "on the node: sudo nvidia-ctk runtime configure --runtime=docker, then restart docker",
        )
    return judge.ok(f"{version}, {'runtime nvidia' if 'nvidia' in found.runtimes else 'CDI'}")


def gpu(facts: Facts) -> Verdict:
    """There is a GPU and its driver answers."""
    judge = Judge("GPU", facts.node)
    found = facts.get(GPUS)
    if found is None:
        problem = facts.problem(GPUS) or ""
        if "not installed" in problem:
            return judge.unknown("no nvidia-smi: ranks run on the CPU here")
        return judge.blocked(
            problem, "read the kernel's log on the node: sudo dmesg | grep -i nvrm; then reboot it"
        )
    if not found:
        return judge.blocked(
            "the driver sees no GPU", "reboot the node; then look at sudo dmesg | grep -i nvrm"
        )
    return judge.ok(f"{found[0].name}, driver {found[0].driver}")
