"""What every rank must have alike: the code, vLLM's configuration as resolved, and the checkpoint.

Each fact is a dotted name and a short text, so that two ranks that differ can be told in what. Large or
secret things appear as digests.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from glmspark.engine.patch import DENSE_VARIABLE, OPTIONAL_VARIABLE
from glmspark.engine.shards import part_of

# Parts of VllmConfig that say where a rank is or how it logs, not what it computes.
OWN = (
    "instance_id",
    "shutdown_timeout",
    "logging_config",
    "observability_config",
    "profiler_config",
    "model_config.model",
    "model_config.model_weights",
    "model_config.tokenizer",
    "model_config.served_model_name",
    "model_config.hf_config.name_or_path",
    "model_config.hf_config._name_or_path",
    "parallel_config.rank",
    "parallel_config.master_addr",
    "parallel_config.master_port",
    "parallel_config.data_parallel_master_ip",
    "parallel_config.data_parallel_master_port",
    "parallel_config.data_parallel_rpc_port",
    "parallel_config.data_parallel_rank_local",
    "parallel_config.distributed_executor_backend",
    "parallel_config.assigned_physical_gpu_ids",
    "parallel_config.placement_group",
    "parallel_config._api_process_count",
    "parallel_config._api_process_rank",
    "compilation_config.cache_dir",
    "compilation_config.local_cache_dir",
    "compilation_config.debug_dump_path",
    "compilation_config.traced_files",
    "compilation_config.compilation_time",
    "compilation_config.encoder_compilation_time",
    "load_config.download_dir",
    "kv_transfer_config.engine_id",
)

SECRETS = ("hf_token",)
"""Fields of any configuration in it that are sent to nobody: the link does not encrypt, and differences are
logged."""

# Variables that vLLM reads and that differ from rank to rank by design.
OWN_VARIABLES = frozenset({"VLLM_CPU_OMP_THREADS_BIND", "LOCAL_WORLD_SIZE", "VLLM_DIST_IDENT"})
ALIKE_VARIABLES = (DENSE_VARIABLE, OPTIONAL_VARIABLE)

_MOST_HEADER = 128 << 20  # bytes of a safetensors header that are read


def gather(vllm_config: Any) -> dict[str, str]:
    """All facts of this rank."""
    model = Path(vllm_config.model_config.model)
    return {
        **software(),
        **environment(),
        **{f"configuration.{name}": value for name, value in configuration(vllm_config).items()},
        **(checkpoint(model) if model.is_dir() else {"checkpoint.model": str(model)}),
    }


def digest(facts: Mapping[str, str]) -> str:
    """One hash of all facts, for logs: sixteen hexadecimal digits."""
    return hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).hexdigest()[:16]


def software() -> dict[str, str]:
    """Versions, our own code, and what became of each patch."""
    import torch
    import transformers
    import vllm.version

    import glmspark
    from glmspark.engine import plugin

    return {
        "software.python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "software.torch": str(torch.__version__),
        "software.transformers": str(transformers.__version__),
        "software.vllm": str(vllm.version.__version__),
        "software.glmspark": glmspark.__version__,
        "software.engine": _code_digest(Path(__file__).parents[1]),
        **{f"software.patch.{one.patch.name}": str(one.state) for one in plugin.outcomes()},
    }


def _code_digest(root: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:16]


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that change what vLLM or the plugin computes, as set in the environment."""
    from vllm.envs import compile_factors

    names = {*compile_factors(), *ALIKE_VARIABLES} - OWN_VARIABLES
    return {f"environment.{name}": _shown(name, environ[name]) for name in sorted(names) if environ.get(name)}


def _shown(name: str, value: str) -> str:
    """The value, or a digest where it may be a secret: facts are logged where they differ."""
    if any(word in name for word in ("KEY", "TOKEN", "SECRET", "PASSWORD")):
        return f"digest {hashlib.sha256(value.encode()).hexdigest()[:8]}"
    return value


def configuration(vllm_config: Any) -> dict[str, str]:
    """vLLM's configuration with all its defaults filled in, without secrets and what is a rank's own."""
    return {
        name: value
        for name, value in flatten("", vllm_config)
        if not any(name == own or name.startswith((f"{own}.", f"{own}[")) for own in OWN)
        and name.rpartition(".")[2] not in SECRETS
    }


def flatten(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """The leaves of nested dataclasses, mappings and sequences, each as text without memory addresses."""
    if isinstance(value, enum.Enum):
        yield name, value.name
    elif value is None or isinstance(value, str | bool | int | float):
        yield name, repr(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            inner = f"{name}.{item.name}" if name else item.name
            yield from flatten(inner, getattr(value, item.name, None))
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from flatten(f"{name}[{key}]", value[key])
    elif isinstance(value, set | frozenset):
        yield name, repr(sorted(map(str, value)))
    elif isinstance(value, list | tuple):
        leaves = ", ".join(text for index, item in enumerate(value) for _, text in flatten(str(index), item))
        yield name, f"[{leaves}]"
    elif type(value).__module__ in {"torch", "pathlib"}:
        yield name, str(value)
    elif isinstance(value, type):
        yield name, f"{value.__module__}.{value.__qualname__}"
    else:
        yield name, f"a {type(value).__module__}.{type(value).__qualname__}"


def checkpoint(directory: Path) -> dict[str, str]:
    """Digests of the configuration, the index, and of every weight file's header and size. Where the index
    says that this is but a part of a checkpoint, its weight files are told by those they are cut out of."""
    facts = {}
    part = part_of(directory)
    for shard, (size, header) in sorted(part.of.items()) if part is not None else ():
        facts[f"checkpoint.{shard}"] = f"{size} bytes, header {header[:16]}"
    for path in sorted(directory.iterdir()):
        if part is not None and path.name.endswith((".index.json", ".safetensors")):
            continue
        if path.name in {"config.json", "generation_config.json"} or path.name.endswith(".index.json"):
            facts[f"checkpoint.{path.name}"] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        elif path.suffix == ".safetensors":
            facts[f"checkpoint.{path.name}"] = f"{path.stat().st_size} bytes, header {_header_digest(path)}"
    return facts


def _header_digest(path: Path) -> str:
    with path.open("rb") as file:
        begun = file.read(8)
        length = int.from_bytes(begun, "little")
        return hashlib.sha256(begun + file.read(min(length, _MOST_HEADER))).hexdigest()[:16]
