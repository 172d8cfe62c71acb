"""From what someone asked for to what would be run: reads, plans, changes nothing."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from glmspark.config import Recipe, load_recipe
from glmspark.config.paths import expand
from glmspark.config.recipe import ModelSource
from glmspark.config.toy import toy_of
from glmspark.errors import GlmsparkError, UsageError
from glmspark.launch.command import Reach, Site, client_url, free_port, is_loopback, rank_argv, rank_env
from glmspark.launch.record import Deployment, Endpoint, Home, Limits, RankRecord, home, new_id, scratch_of
from glmspark.models.checkpoint import check_tokenizer, inspect_checkpoint
from glmspark.models.source import locate
from glmspark.nodes import processes
from glmspark.nodes.facts.cpu import CORES
from glmspark.nodes.facts.host import HOSTNAME
from glmspark.nodes.facts.memory import MEMORY
from glmspark.nodes.transport import Transport, gather
from glmspark.plan import MachineFacts, Plan, plan_local
from glmspark.plan.checks import check_one_machine, check_runnable

Backend = Literal["mp", "ray", "lockstep"]

KEY_ADVICE = (
    "set GLMSPARK_API_KEY, or give --api-key-env NAME or --api-key-file FILE; --insecure serves without one"
)


_OTHER_TOKENIZER = {"tokenizer", "tokenizer_mode", "skip_tokenizer_init"}
"""vLLM arguments by which a recipe brings a tokenizer of its own."""


@dataclass(frozen=True)
class Request:
    """What `glmspark up` was asked for. name: of the deployment, the recipe's if None. model: a directory to
    serve instead of the recipe's model. timeout: seconds a start may take instead of the plan's. toy: the
    recipe's counterpart at toy scale. backend: what holds the ranks together, the recipe's if None.
    restarts: so often within so many minutes, instead of the recipe's. keep_up: come back when a lost node
    does."""

    recipe: str = "glm-tiny"
    name: str | None = None
    tp: int | None = None
    pp: int | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    key: str | None = None
    insecure: bool = False
    model: Path | None = None
    keep: bool = False
    timeout: float | None = None
    toy: bool = False
    backend: Backend | None = None
    restarts: tuple[int, float] | None = None
    keep_up: bool = False


@dataclass(frozen=True)
class Wanted:
    """A request whose recipe was read and that may go on: everything but the plan."""

    request: Request
    recipe: Recipe
    home: Home
    tp: int
    pp: int

    def differs(self, deployment: Deployment, *, backend: str | None = None) -> list[str]:
        """In what a running deployment is not the one wanted, in words; empty when it is the same. backend:
        what should hold its ranks together, None for whatever does."""
        plan, endpoint = deployment.plan, deployment.endpoint
        found = []
        if deployment.recipe != self.recipe_data():
            found.append("another version of the recipe or another model")
        if (plan["tp"], plan["pp"]) != (self.tp, self.pp):
            found.append(f"TP{plan['tp']} PP{plan['pp']} instead of TP{self.tp} PP{self.pp}")
        if backend is not None and plan.get("backend", "mp") != backend:
            found.append(f"by {plan.get('backend', 'mp')} instead of {backend}")
        if (endpoint.host, endpoint.port) != (self.request.host, self.request.port):
            found.append(
                f"{endpoint.host}:{endpoint.port} instead of {self.request.host}:{self.request.port}"
            )
        if endpoint.needs_key != (self.request.key is not None):
            found.append("with an API key" if endpoint.needs_key else "without an API key")
        elif self.request.key is not None and self.request.key != self.home.read_key():
            found.append("with another API key")
        return found

    @property
    def local_backend(self) -> Literal["mp", "lockstep"]:
        """What holds the ranks together on one machine: Ray is for several, mp takes its place."""
        return "lockstep" if (self.request.backend or self.recipe.layout.backend) == "lockstep" else "mp"

    def recipe_data(self) -> dict[str, Any]:
        """The recipe as the record keeps it."""
        return self.recipe.model_dump(mode="json")


def read_request(request: Request) -> Wanted:
    """Read the recipe and check what needs no look at the machine.

    Raises RecipeError; PlanError for a recipe that this version cannot run; and UsageError for one without a
    toy counterpart where that is asked for, and for an endpoint beyond this machine without a key.
    """
    recipe = load_recipe(request.recipe)
    if request.toy:
        recipe = toy_of(recipe)
    if request.restarts is not None:
        times, minutes = request.restarts
        restart = recipe.restart.model_copy(update={"times": times, "minutes": minutes})
        recipe = recipe.model_copy(update={"restart": restart})
    check_runnable(recipe)
    if request.model is not None:
        source = ModelSource("path", str(expand(request.model).absolute()))
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"source": source})})
    if not is_loopback(request.host) and request.key is None and not request.insecure:
        raise UsageError(
            f"{request.host} can be reached from other machines, and no API key is set",
            step="check the endpoint",
            next=KEY_ADVICE,
        )
    tp, pp = request.tp, request.pp
    if tp is None and pp is None:  # as the plan has it: one of them alone means the other is 1
        tp, pp = recipe.layout.tp, recipe.layout.pp
    return Wanted(request, recipe, home(request.name or recipe.name), tp or 1, pp or 1)


def machine_facts(transport: Transport) -> MachineFacts:
    """What the plan must know of a machine. Raises NodeError."""
    memory = gather(transport, MEMORY)
    return MachineFacts(
        hostname=gather(transport, HOSTNAME),
        cpus=gather(transport, CORES),
        memory_total=memory.total,
        memory_available=memory.available,
    )


def make_plan(wanted: Wanted, transport: Transport) -> Plan:
    """The plan. Raises CheckpointError and PlanError; GlmsparkError where the engine is not installed."""
    request = wanted.request
    check_one_machine(wanted.recipe)
    if request.backend == "ray":
        raise UsageError(
            "Ray holds ranks of several machines together, not those of one",
            step="plan",
            next="leave --backend out, choose mp or lockstep, or name nodes with --cluster cluster.yaml",
        )
    if request.model is not None and not expand(request.model).is_dir():
        state = "is no directory" if expand(request.model).exists() else "does not exist"
        raise UsageError(
            f"--model {request.model} {state}",
            step="find the model",
            next="give the directory with config.json and the *.safetensors files, or leave --model out",
        )
    checkpoint = inspect_checkpoint(locate(wanted.recipe.model.source))
    if not wanted.recipe.engine.args.keys() & _OTHER_TOKENIZER:
        check_tokenizer(checkpoint.directory)
    plan = plan_local(
        wanted.recipe,
        checkpoint,
        facts=machine_facts(transport),
        tp=request.tp,
        pp=request.pp,
        host=request.host,
        port=request.port,
        backend=wanted.local_backend,
    )
    if importlib.util.find_spec("vllm") is None:
        raise GlmsparkError(
            "the local engine is not installed",
            step="look for vLLM",
            seen=f"{sys.executable} has no module vllm",
            next="in a checkout of glmspark: make serve, or pip install '.[cpu]'",
        )
    return plan


def make_record(wanted: Wanted, plan: Plan, *, now: float) -> Deployment:
    """The record of a start that has not begun: what is run for each rank, and where."""
    deployment_id = new_id()
    here = Reach()
    site = Site(
        deployment_id,
        wanted.home.path,
        scratch_of(wanted.home.path),
        free_port(here.address),
        (here,) * plan.world,
    )
    limits = Limits(start=float(plan.limits.start), join=float(plan.limits.join))
    if wanted.request.timeout is not None:
        limits = limits.model_copy(update={"start": wanted.request.timeout})
    return Deployment(
        id=deployment_id,
        name=wanted.home.name,
        boot_id=processes.boot_id(),
        created=now,
        since=now,
        keep=wanted.request.keep,
        recipe=wanted.recipe_data(),
        plan=plan.to_json(),
        endpoint=Endpoint(
            host=plan.endpoint.host,
            port=plan.endpoint.port,
            url=client_url(plan.endpoint.host, plan.endpoint.port),
            model=plan.served_name,
            needs_key=wanted.request.key is not None,
        ),
        limits=limits,
        scratch=str(site.scratch),
        ranks=[
            RankRecord(
                rank=rank.rank,
                node=rank.host,
                argv=rank_argv(plan, rank.rank, site, python=sys.executable),
                env=rank_env(plan, rank.rank, site),
                log=str(wanted.home.rank_log(rank.rank)),
            )
            for rank in plan.ranks
        ],
    )
