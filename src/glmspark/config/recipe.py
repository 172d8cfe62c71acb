"""A recipe: which model, with which engine settings, and how to tell that it answers rightly.

The classes here are the file format. Reading files and naming lines is `loader`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    field_validator,
    model_validator,
)

from glmspark.config.canaries import Canary, Section, Text, at_least, shipped_canaries
from glmspark.config.units import parse_size

__all__ = [
    "Draft",
    "Engine",
    "Layout",
    "Model",
    "ModelSource",
    "Needs",
    "Origin",
    "Patches",
    "Recipe",
    "Toy",
]

_NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"

ENGINE_OWNED_ARGS: Mapping[str, str] = {
    "host": "`glmspark up --host`",
    "port": "`glmspark up --port`",
    "api_key": "GLMSPARK_API_KEY or `glmspark up --api-key-file`",
    "uds": "nothing: the API listens on `glmspark up --host` and `--port`",
    "config": "nothing: write its arguments here",
    "model": "model.source",
    "served_model_name": "model.served_name",
    "trust_remote_code": "nothing: remote code is never run",
    "tool_parser_plugin": "nothing: code from a recipe is never run",
    "reasoning_parser_plugin": "nothing: code from a recipe is never run",
    "tensor_parallel_size": "layout.tp",
    "pipeline_parallel_size": "layout.pp",
    "decode_context_parallel_size": "layout.dcp",
    "kv_cache_memory_bytes": "engine.kv_cache_memory",
    "gpu_memory_utilization": "engine.kv_cache_memory",
    "nnodes": "the plan",
    "node_rank": "the plan",
    "master_addr": "the plan",
    "master_port": "the plan",
    "headless": "the plan",
    "distributed_executor_backend": "layout.backend",
}
"""vLLM arguments that `engine.args` may not set, and what sets them instead."""

ENGINE_OWNED_ENV: Mapping[str, str] = {
    "VLLM_API_KEY": "GLMSPARK_API_KEY or `glmspark up --api-key-file`",
    "VLLM_HOST_IP": "the plan",
    "GLOO_SOCKET_IFNAME": "the plan",
    "NCCL_SOCKET_IFNAME": "the plan",
    "TP_SOCKET_IFNAME": "the plan",
    "NCCL_IB_HCA": "the plan, from cluster.yaml",
    "NCCL_IB_GID_INDEX": "the plan, looked up at each start",
    "MASTER_ADDR": "the plan",
    "MASTER_PORT": "the plan",
    "VLLM_CPU_OMP_THREADS_BIND": "the plan",
    "VLLM_CPU_KVCACHE_SPACE": "engine.kv_cache_memory",
    "VLLM_PP_LAYER_PARTITION": "the plan",
    "VLLM_PLUGINS": "nothing: the plugin is always loaded",
}
"""Environment variables that `engine.env` may not set, and what sets them instead."""


@dataclass(frozen=True)
class ModelSource:
    """Where a checkpoint comes from: package:NAME, path:/dir or hf:org/name@revision."""

    kind: Literal["package", "path", "hf"]
    name: str
    revision: str | None = None

    @property
    def directory(self) -> str:
        """The name of its directory below paths.models, one level deep: of hf:org/name@refs/pr/1, too."""
        name = self.name if self.revision is None else f"{self.name}@{self.revision}"
        return name.replace("/", "--")

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" + (f"@{self.revision}" if self.revision else "")


def _parse_source(value: object) -> ModelSource:
    if isinstance(value, ModelSource):
        return value
    forms = "package:NAME, path:/dir or hf:org/name@revision"
    if not isinstance(value, str):
        raise ValueError(f"expected {forms}, got {value!r}")
    kind, colon, rest = value.partition(":")
    if kind == "package" and re.fullmatch(_NAME.strip("^$"), rest):
        return ModelSource("package", rest)
    if kind == "path" and rest.startswith(("/", "~/")) and "\0" not in rest:
        return ModelSource("path", rest)
    if kind == "hf":
        match = re.fullmatch(r"([\w-][\w.-]{0,95}/[\w-][\w.-]{0,95})@([\w][\w./-]{0,254})", rest, re.ASCII)
        if match and ".." not in rest:
            return ModelSource("hf", match[1], match[2])
        if re.fullmatch(r"[\w.-]+/[\w.-]+", rest, re.ASCII):
            raise ValueError(f"{value!r} names no revision; write hf:{rest}@revision")
    if colon and kind == "path":
        raise ValueError(f"{value!r} is not an absolute path; write path:/dir or path:~/dir")
    raise ValueError(f"expected {forms}, got {value!r}")


Size = Annotated[int, BeforeValidator(parse_size)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]


def _no_remote_code(value: bool) -> bool:
    if value:
        raise ValueError("remote code is never run: the architectures served here are vLLM's own")
    return value


Source = Annotated[ModelSource, PlainValidator(_parse_source), PlainSerializer(str)]


class Model(Section):
    """What is served."""

    source: Source
    served_name: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^\S+$")]
    trust_remote_code: Annotated[bool, AfterValidator(_no_remote_code)] = False


class Layout(Section):
    """How the model is split: tp ranks share every layer, pp stages share out the layers, and dcp of the
    ranks that share a layer share out its KV cache by tokens (decode context parallelism).

    backend: what holds the ranks together. mp: vLLM's own processes, one group of ranks over all nodes.
    ray: a Ray cluster. lockstep: ranks started like torchrun's, the first one telling the others each step.
    """

    tp: Annotated[int, Field(ge=1, le=1024)] = 1
    pp: Annotated[int, Field(ge=1, le=1024)] = 1
    dcp: Annotated[int, Field(ge=1, le=1024)] = 1
    backend: Literal["mp", "ray", "lockstep"] = "mp"

    @model_validator(mode="after")
    def _shared_out(self) -> Layout:
        if self.tp % self.dcp:
            raise ValueError(f"dcp {self.dcp} does not divide tp {self.tp}: it shares out tp's ranks")
        return self

    @property
    def world(self) -> int:
        """Number of ranks; context parallelism adds none."""
        return self.tp * self.pp

    def words(self) -> str:
        """The layout as people say it: TP4 DCP4, PP3 ray."""
        sizes = (("TP", self.tp), ("PP", self.pp), ("DCP", self.dcp))
        said = [f"{name}{size}" for name, size in sizes if size > 1] or ["TP1"]
        return " ".join(said + ([self.backend] if self.backend != "mp" else []))


class Draft(Section):
    """Speculative decoding: who proposes the tokens that the model then verifies, and how many a step.

    source: the drafter's own checkpoint, for methods that have one. args: further keys of vLLM's
    speculative_config, by name.
    """

    method: Literal["mtp", "ngram", "suffix", "eagle3", "dflash", "dspark", "draft_model"]
    tokens: Annotated[int, Field(ge=1, le=64)]
    source: Source | None = None
    args: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> Draft:
        if self.source is None and self.method in ("eagle3", "dflash", "dspark", "draft_model"):
            raise ValueError(f"method {self.method} needs source, the drafter's checkpoint")
        if self.source is not None and self.method in ("ngram", "suffix"):
            raise ValueError(f"method {self.method} has no checkpoint: leave source out")
        for name, key in (("method", "method"), ("num_speculative_tokens", "tokens"), ("model", "source")):
            if name in self.args:
                raise ValueError(f"{name} is set by draft.{key}, not under args")
        return self


class Engine(Section):
    """vLLM's settings. The typed ones are those the plan needs; any other flag goes under `args`."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_model_len: Count
    max_num_seqs: Count
    max_num_batched_tokens: Count
    kv_cache_memory: Size
    """KV cache of one rank in bytes."""
    enforce_eager: bool = False
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    dense_attention: bool = False
    """Allow attention to all tokens where the platform lacks sparse attention and the context exceeds the
    model's index_topk: there the answers are no longer those of the trained model."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Further vLLM arguments by name, e.g. max_logprobs: 5. Mappings and lists are passed as JSON."""
    env: dict[str, str] = Field(default_factory=dict)

    @field_validator("args")
    @classmethod
    def _args(cls, args: dict[str, Any]) -> dict[str, Any]:
        for name, value in args.items():
            bare = name.strip().lstrip("-").replace("-", "_")
            if not re.fullmatch(r"[a-z][a-z0-9_]*", bare):
                raise ValueError(f"{name!r} is not a vLLM argument name")
            if bare != name:
                raise ValueError(f"write {bare}, not {name}")
            if name in ENGINE_OWNED_ARGS:
                raise ValueError(f"{name} is set by {ENGINE_OWNED_ARGS[name]}, not under args")
            if name in cls.model_fields:
                raise ValueError(f"{name} is a key of engine itself: move it out of args")
            if value is None:
                raise ValueError(f"{name} has no value")
        return args

    @field_validator("env")
    @classmethod
    def _env(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"{name!r} is not an environment variable name")
            if name in ENGINE_OWNED_ENV:
                raise ValueError(f"{name} is set by {ENGINE_OWNED_ENV[name]}, not under env")
            if name.startswith("GLMSPARK_"):
                raise ValueError(f"{name} is set by the plan, not under env")
            if "\0" in value:
                raise ValueError(f"{name} holds a NUL character")
        return env

    @model_validator(mode="after")
    def _batch(self) -> Engine:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below max_num_seqs "
                f"({self.max_num_seqs}): a step must hold one token of every sequence"
            )
        return self


PatchName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]


class Patches(Section):
    """Patches of the engine plugin. required: those this recipe is wrong without, beside whatever the plugin
    needs on the vLLM at hand. optional: those that may be skipped when their precondition does not hold."""

    required: tuple[PatchName, ...] = ()
    optional: tuple[PatchName, ...] = ()


class Needs(Section):
    """What must be there. nodes: machines, one rank each, as many as ranks if not given. platform: what the
    model's kernels run on. memory_per_rank: what a rank is known to take; the plan uses the larger of this
    and its own sum. disk: the checkpoint's files, on every node. link, link_gbit: between the nodes; ethernet
    is a wired port, rdma is RoCE."""

    nodes: Annotated[int, Field(ge=1, le=1024)] | None = None
    platform: Literal["cpu", "cuda"] | None = None
    memory_per_rank: Size | None = None
    disk: Size | None = None
    link: Literal["any", "ethernet", "rdma"] = "any"
    link_gbit: Annotated[float, Field(gt=0, le=10_000)] | None = None


class Restart(Section):
    """How often a deployment on nodes starts again as a whole once it was proven: at most `times` (0: never)
    within `minutes`; then it stays down. stall_s: seconds without a token or a step, while requests run, that
    are a stall; the plan says if not given."""

    times: Annotated[int, Field(ge=0, le=1000)] = 3
    minutes: Annotated[float, Field(gt=0, le=100_000)] = 30.0
    stall_s: Annotated[float, Field(ge=2, le=3600)] | None = None


class Origin(Section):
    """Where part of a recipe comes from. url or, where it has none, title. takes: what. published: figures
    that its authors state there; none of them was measured by glmspark."""

    url: Annotated[str, Field(pattern=r"^https://[^\s]{4,500}$")] | None = None
    title: Text | None = None
    takes: Text
    published: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _named(self) -> Origin:
        if self.url is None and self.title is None:
            raise ValueError("a source has a url or, where there is none, a title")
        return self


class Toy(Section):
    """The same recipe at toy scale, on CPUs: see `glmspark.config.toy`.

    source: a glm-tiny, where possible with the checkpoint's own peculiarities. differs: in what the toy is
    not the recipe. without: names of engine.args and engine.env that mean nothing there. draft: instead of
    the recipe's. without_canaries: names of those of glm-tiny that are left out.
    """

    source: Source
    differs: Text
    dtype: Literal["float32", "bfloat16"] = "float32"
    without: tuple[Text, ...] = ()
    draft: Draft | None = None
    without_canaries: tuple[Text, ...] = ()
    lacks: tuple[Text, ...] = ()


class Recipe(Section):
    """A whole recipe file."""

    recipe: Literal[1]
    name: Annotated[str, Field(pattern=_NAME)]
    description: str = ""
    model: Model
    layout: Layout = Layout()
    engine: Engine
    draft: Draft | None = None
    patches: Patches = Patches()
    needs: Needs = Needs()
    restart: Restart = Restart()
    canaries: Annotated[tuple[Canary, ...], BeforeValidator(shipped_canaries), at_least(1)]
    """A list of canaries, or the name of a list that comes with glmspark (`glm-5.2`, `glm-5.3`)."""
    toy: Toy | None = None
    sources: tuple[Origin, ...] = ()
    measured: tuple[Text, ...] = ()
    """Figures that glmspark's own makers measured with this recipe, each with place and date."""
    lacks: tuple[Text, ...] = ()
    """What this version of glmspark does not provide for it yet, one sentence each: it is not started."""
    imported: dict[str, Any] = Field(default_factory=dict)
    """What a recipe of another format said that has no meaning here, kept as it was. Nothing reads it."""

    @model_validator(mode="after")
    def _one_drafter(self) -> Recipe:
        if self.draft is not None and "speculative_config" in self.engine.args:
            raise ValueError("draft and engine.args.speculative_config exclude each other: keep draft")
        needed = self.needs.nodes
        if needed is not None and needed > self.layout.world:
            raise ValueError(
                f"needs.nodes is {needed}, and the layout has {self.layout.world} ranks for them"
            )
        return self
