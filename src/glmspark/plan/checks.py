"""What can be refused before anything is measured or started: endpoint, context, kernel, drafter."""

from __future__ import annotations

import ipaddress

from glmspark.config.recipe import Recipe
from glmspark.models.architecture import Architecture
from glmspark.models.checkpoint import Checkpoint
from glmspark.plan.errors import PlanError
from glmspark.plan.facts import MachineFacts

__all__ = [
    "check_context",
    "check_drafter",
    "check_endpoint",
    "check_one_machine",
    "check_positions",
    "check_runnable",
    "drafts_with_mtp",
]

_CPU_MLA_WIDTH = 576
"""The one head size of vLLM's CPU decode kernel (vllm/v1/attention/backends/mla/cpu_mla.py)."""


def check_endpoint(host: str, port: int) -> None:
    """Raises PlanError unless host and port can name a listening address."""
    if not 1 <= port <= 65535:
        raise PlanError(f"port {port} does not exist", step="plan", next="choose --port from 1 to 65535")
    if not host or any(character.isspace() or character == "/" for character in host):
        raise PlanError(f"{host!r} is not an address", step="plan", next="write --host 127.0.0.1")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if host.replace(".", "").isdigit():
            raise PlanError(f"{host} is not an IPv4 address", step="plan") from None


def check_positions(recipe: Recipe, architecture: Architecture) -> None:
    """Raises PlanError for a context beyond what the model was made for."""
    length, trained = recipe.engine.max_model_len, architecture.max_position
    if length > trained:
        raise PlanError(
            f"max_model_len {length} exceeds the {trained} positions the model was made for",
            step="plan the context",
            next=f"set engine.max_model_len to at most {trained}",
        )


def check_context(recipe: Recipe, checkpoint: Checkpoint, facts: MachineFacts) -> None:
    """Raises PlanError for a context that the model or this platform's attention does not reach.

    Up to index_topk tokens DSA chooses all of them, so dense attention is the same model; beyond, it is not.
    """
    architecture, engine = checkpoint.architecture, recipe.engine
    length, topk = engine.max_model_len, architecture.index_topk
    check_positions(recipe, architecture)
    if topk is not None and length > topk and not facts.sparse_attention and not engine.dense_attention:
        raise PlanError(
            f"max_model_len {length} exceeds the model's index_topk of {topk}, and there is no sparse "
            f"attention on the {facts.platform.upper()}",
            host=facts.hostname,
            step="plan the context",
            seen="beyond index_topk tokens the model was trained to attend to a choice of them; attending to "
            "all is another model",
            next=f"set engine.max_model_len to at most {topk}, or engine.dense_attention: true if meant",
        )
    if facts.platform != "cpu":
        return
    if architecture.linear is not None:
        raise PlanError(
            f"{architecture.name} has linear attention, for which vLLM has no kernels on the CPU",
            host=facts.hostname,
            step="plan",
            next="serve it on nodes with a GPU; `glmspark plan` says on which",
        )
    if architecture.kv_latent != _CPU_MLA_WIDTH:
        raise PlanError(
            f"the model's MLA latent has {architecture.kv_latent} elements; vLLM's CPU kernel takes "
            f"{_CPU_MLA_WIDTH} only",
            step="plan",
            seen=f"kv_lora_rank {architecture.kv_lora_rank}, "
            f"qk_rope_head_dim {architecture.qk_rope_head_dim}",
        )


def check_drafter(recipe: Recipe, checkpoint: Checkpoint) -> None:
    """Raises PlanError for speculation with an MTP layer that the checkpoint lacks."""
    if drafts_with_mtp(recipe) and not checkpoint.has_mtp:
        raise PlanError(
            "the recipe drafts with method mtp, and the checkpoint has no MTP layer",
            step="plan the drafter",
            seen=str(checkpoint.directory),
            next="remove draft (or speculative_config), or use method ngram",
        )


def check_runnable(recipe: Recipe) -> None:
    """Raises PlanError for a recipe that needs what this version of glmspark does not provide yet."""
    if recipe.lacks:
        raise PlanError(
            f"{recipe.name} cannot be run yet: {recipe.lacks[0]}",
            step="read the recipe",
            seen="\n".join(recipe.lacks[1:]) or None,
            next=f"`glmspark up {recipe.name} --toy` runs its layout at toy scale; "
            "`glmspark recipe list` says which recipes run"
            if recipe.toy is not None and not recipe.toy.lacks
            else "`glmspark recipe list` says which recipes run",
        )


def check_one_machine(recipe: Recipe) -> None:
    """Raises PlanError for a recipe that is not for the CPU of one machine."""
    if recipe.needs.platform == "cuda" or (recipe.needs.nodes or 1) > 1:
        nodes = recipe.needs.nodes or recipe.layout.world
        toy = f", or try its layout here at toy scale with `glmspark up {recipe.name} --toy`"
        raise PlanError(
            f"{recipe.name} is for {nodes} node{'s' if nodes > 1 else ''}"
            + (" with a GPU each" if recipe.needs.platform == "cuda" else "")
            + ", not for this machine alone",
            step="plan",
            next="name the nodes with --cluster cluster.yaml (`glmspark init` writes it)"
            + (toy if recipe.toy is not None else ""),
        )


def drafts_with_mtp(recipe: Recipe) -> bool:
    """Whether the recipe drafts with the model's own MTP layer."""
    if recipe.draft is not None:
        return recipe.draft.method == "mtp" and recipe.draft.source is None
    config = recipe.engine.args.get("speculative_config")
    return isinstance(config, dict) and config.get("method") == "mtp"
