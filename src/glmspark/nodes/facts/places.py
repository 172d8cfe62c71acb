"""Where ranks of a node run: an environment of the node's own, or containers of an image. Probes run there,
with what ranks are given, so that what they see is what ranks will see."""

from __future__ import annotations

from dataclasses import dataclass

GPU_OPTIONS = ("--gpus", "all", "--ulimit", "memlock=-1:-1")
"""`docker run` options of a container that computes on the GPU: RDMA locks the memory it reads from."""
VERBS_OPTIONS = ("--device", "/dev/infiniband", "--cap-add", "IPC_LOCK")
"""`docker run` options of a container that uses RDMA; without them NCCL uses sockets, and says so nowhere."""

# As ranks do, it runs as the user who connects; only the node knows that user's number.
_AS_USER = 'exec docker run --user "$(id -u):$(id -g)" "$@"'


@dataclass(frozen=True)
class Place:
    """image: of containers; venv: the environment's directory on the node. python: in the container. mounts:
    directories of the node that containers get at the same path, read-only."""

    image: str | None = None
    venv: str | None = None
    python: str = "python3"
    mounts: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether it is said where ranks run."""
        return self.image is not None or self.venv is not None

    def run(self, code: str, *arguments: str, gpu: bool = False, verbs: bool = False) -> tuple[str, ...]:
        """The command that runs Python code there. gpu, verbs: whether a container gets those devices.

        Raises ValueError where it is not known what ranks run in.
        """
        if self.venv is not None:
            return (f"{self.venv}/bin/python", "-c", code, *arguments)
        if self.image is None:
            raise ValueError("neither an image nor an environment is named")
        options = ["--rm", "--pull", "never", "--network", "none"]
        options += GPU_OPTIONS if gpu else ()
        options += VERBS_OPTIONS if verbs else ()
        for path in self.mounts:
            options += ["--mount", f"type=bind,src={path},dst={path},readonly"]
        options += ["--entrypoint", self.python, self.image, "-c", code, *arguments]
        return ("sh", "-c", _AS_USER, "docker", *options)
