"""The Dockerfiles of the images that ranks run in, as text with pinned versions. Nothing is run here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glmspark.nodes.checks.alike import NCCL_BAD

__all__ = ["LABEL", "LabImage", "SparkImage", "lab_dockerfile", "spark_dockerfile"]

LABEL = "glmspark.version"
"""The label by which an image of ours is known."""

_HOME = "/opt/glmspark"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_APT = (
    "gcc",  # Triton and b12x's RDMA proxy compile a little C when they are first used
    "g++",
    "ibverbs-providers",
    "libibverbs1",
    "libnuma1",
    "librdmacm1t64",
    "python3-dev",
    "python3-venv",
)


@dataclass(frozen=True)
class SparkImage:
    """What goes into the image for Sparks. wheel: the file name of glmspark's wheel beside the Dockerfile.

    base: CUDA 13 with its compiler, for FlashInfer's and CUTLASS DSL's kernels; its tag is pinned. index:
    PyTorch's builds for CUDA 13: the usual index has torch for aarch64 without CUDA, and pip would take that
    without a word.
    """

    version: str
    wheel: str
    base: str = "nvidia/cuda:13.0.2-devel-ubuntu24.04"
    vllm: str = "0.33.0"
    ray: str = "2.60.0"
    b12x: str = "1.5.1"
    index: str = "https://download.pytorch.org/whl/cu130"

    @property
    def requirements(self) -> tuple[str, ...]:
        """What pip installs beside glmspark, each of one version."""
        return (f"vllm=={self.vllm}", f"ray=={self.ray}", f"b12x=={self.b12x}")

    @property
    def labels(self) -> dict[str, str]:
        """The image's labels."""
        return {
            "org.opencontainers.image.title": "glmspark",
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.version": self.version,
            LABEL: self.version,
            "glmspark.vllm": self.vllm,
            "glmspark.ray": self.ray,
            "glmspark.b12x": self.b12x,
            "glmspark.base": self.base,
        }


@dataclass(frozen=True)
class LabImage:
    """The lab's image: its base, which an environment of the machine is mounted into. path: where programs
    lie in that environment."""

    version: str
    base: str
    path: str
    vllm: str

    @property
    def labels(self) -> dict[str, str]:
        """The image's labels."""
        return {
            "org.opencontainers.image.title": "glmspark lab",
            "org.opencontainers.image.version": self.version,
            LABEL: self.version,
            "glmspark.vllm": self.vllm,
            "glmspark.base": self.base,
        }


# Says what pip has made of the requirements, and fails the build where a rank would fail later: torch
# without CUDA, or an NCCL that hangs. It needs no GPU.
_CHECK = """\
import importlib.metadata, re, sys
import torch
bad = {bad}
nccl = [d for d in importlib.metadata.distributions() if re.match("nvidia[-_]nccl", d.metadata["Name"] or "")]
for d in nccl:
    if d.version in bad:
        sys.exit("NCCL " + d.version + ": " + bad[d.version])
if not torch.version.cuda:
    sys.exit("torch " + torch.__version__ + " was built without CUDA")
print("torch", torch.__version__, "CUDA", torch.version.cuda, *("NCCL " + d.version for d in nccl))
"""


def spark_dockerfile(image: SparkImage) -> str:
    """The Dockerfile of the image for Sparks: CUDA 13, an environment of its own, nothing built from source.

    It needs no BuildKit. The command is what `docker run` is given: no entrypoint stands before it.
    """
    check = _CHECK.format(bad=json.dumps(NCCL_BAD))
    return "\n".join(
        [
            "# Written by `glmspark image build`.",
            f"FROM {image.base}",
            _labels(image.labels),
            _run(
                [
                    "apt-get update",
                    "DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "
                    + " ".join(_APT),
                    "rm -rf /var/lib/apt/lists/*",
                    f"python3 -m venv {_HOME}",
                ]
            ),
            _env(
                {
                    "PATH": f"{_HOME}/bin:/usr/local/cuda/bin:{_PATH}",
                    "VIRTUAL_ENV": _HOME,
                    "PIP_NO_CACHE_DIR": "1",
                    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                    "CUTE_DSL_ARCH": "sm_121a",
                    "HF_HUB_OFFLINE": "1",  # weights are mounted; a rank that asks the hub asks in vain
                    "VLLM_NO_USAGE_STATS": "1",
                    "DO_NOT_TRACK": "1",
                    "NVIDIA_VISIBLE_DEVICES": "all",
                    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
                }
            ),
            "# The engine first: it takes long and changes seldom.",
            _run([f"pip install --extra-index-url {image.index} {' '.join(image.requirements)}"]),
            f"COPY {image.wheel} /tmp/",
            _run([f"pip install /tmp/{image.wheel}", f"rm /tmp/{image.wheel}"]),
            f"RUN {json.dumps(['python3', '-c', check])}",
            "ENTRYPOINT []",
            'CMD ["glmspark", "--help"]',
            "",
        ]
    )


def lab_dockerfile(image: LabImage) -> str:
    """The Dockerfile of the lab's image: labels and paths over the lab's base. It fetches nothing."""
    return "\n".join(
        [
            "# Written by `glmspark image build --lab`.",
            f"FROM {image.base}",
            _labels(image.labels),
            _env(
                {
                    "PATH": f"{image.path}:{_PATH}",
                    "HF_HUB_OFFLINE": "1",
                    "VLLM_NO_USAGE_STATS": "1",
                    "DO_NOT_TRACK": "1",
                }
            ),
            "ENTRYPOINT []",
            'CMD ["python3", "--version"]',
            "",
        ]
    )


def _labels(labels: Mapping[str, str]) -> str:
    return "LABEL " + " \\\n      ".join(f"{name}={json.dumps(value)}" for name, value in labels.items())


def _env(variables: Mapping[str, str]) -> str:
    return "ENV " + " \\\n    ".join(f"{name}={json.dumps(value)}" for name, value in variables.items())


def _run(steps: Sequence[str]) -> str:
    """Shell steps of which the first that fails ends the build."""
    return "RUN " + " \\\n && ".join(steps)
