"""What ranks find where they run: the right engine, memory that can be locked, RDMA devices that open.

All of it needs a look from inside, which is only taken when asked for (`glmspark doctor --load`).
"""

from __future__ import annotations

from collections.abc import Iterator

from glmspark import __version__
from glmspark.config.units import format_size
from glmspark.nodes.checks import Expected, Judge, Look, Verdict
from glmspark.nodes.facts.inside import Inside, inside


def what_ranks_find(look: Look) -> Iterator[Verdict]:
    """The engine on every node, and in containers what RDMA needs."""
    expected = look.expected
    if not expected.place.known:
        return
    fact = inside(expected.place)
    for node, facts in look.facts.items():
        found = facts.get(fact)
        if found is None:
            if facts.problem(fact) != "not asked for":
                yield Judge("engine", node).unread(facts, fact)
            continue
        yield _engine(Judge("engine", node), found, expected)
        if expected.rdma and expected.runtime == "docker":
            yield _memory(Judge("locked memory in containers", node), found)
            yield _verbs(Judge("/dev/infiniband in containers", node), found)


def _engine(judge: Judge, found: Inside, expected: Expected) -> Verdict:
    vllm, own, ray = (found.versions.get(name, "") for name in ("vllm", "glmspark", "ray"))
    if expected.runtime == "docker":
        where, cure = f"the image {expected.image}", "use an image made by `glmspark image build`"
    else:
        where, cure = f"the environment {expected.place.venv}", "install glmspark with its engine there"
    missing = [name for name, value in (("vLLM", vllm), ("glmspark", own)) if not value]
    if expected.backend == "ray" and not ray:
        missing.append("Ray, which the recipe's backend is")
    if missing:
        return judge.blocked(f"{where} has no {', no '.join(missing)}", cure)
    seen = f"vLLM {vllm}, glmspark {own}" + (f", Ray {ray}" if ray else "")
    if own != __version__:
        return judge.slow(
            f"{seen}, while this is glmspark {__version__}: patches and plans may not fit each other", cure
        )
    return judge.ok(seen)


def _memory(judge: Judge, found: Inside) -> Verdict:
    if found.memlock is None:
        return judge.ok("unlimited")
    return judge.blocked(
        f"at most {format_size(found.memlock)}, whatever `docker run --ulimit memlock=-1` asks for",
        "on the node: sudo systemctl edit docker, and LimitMEMLOCK=infinity under [Service]; a rootless "
        "Docker cannot lift it",
    )


def _verbs(judge: Judge, found: Inside) -> Verdict:
    uverbs = {name: usable for name, usable in found.verbs.items() if name.startswith("uverbs")}
    if not uverbs or "rdma_cm" not in found.verbs:
        return judge.blocked(
            f"{', '.join(found.verbs) or 'empty or missing'}: NCCL would use sockets, and say so nowhere",
            "on the node: sudo modprobe -a mlx5_ib ib_uverbs rdma_ucm; a rootless Docker cannot hand them on",
        )
    closed = sorted(
        name for name, usable in found.verbs.items() if not usable and name in (*uverbs, "rdma_cm")
    )
    if closed:
        return judge.blocked(
            f"{', '.join(closed)} may not be opened by the user that ranks run as",
            "on the node: sudo apt-get install rdma-core, whose rules open them to all; for now: "
            "sudo chmod 666 /dev/infiniband/uverbs* /dev/infiniband/rdma_cm",
        )
    return judge.ok(f"{len(found.verbs)} devices")
