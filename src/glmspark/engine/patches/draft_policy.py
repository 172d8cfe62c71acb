"""The number of drafts a step, chosen while serving."""

from __future__ import annotations

import ast
import functools
import logging
import os
import time
from typing import Any

from glmspark.engine import code as look
from glmspark.engine.code import Code
from glmspark.engine.draft_policy import DraftPolicy, candidates
from glmspark.engine.model_config import before_glm_config, missing_hook
from glmspark.engine.patch import Finding, Patch, PatchRefusedError, Target

VARIABLE = "GLMSPARK_DRAFT_POLICY"

_SCHEDULER = "vllm.v1.core.sched.scheduler"
_SPECULATION = "vllm.config.speculative"
_SAYS_EVERY = 300.0  # seconds

logger = logging.getLogger("vllm.glmspark.draft_policy")


def wanted() -> bool:
    """Whether the recipe asks for it. Raises `PatchRefusedError` for anything but auto, fixed or nothing."""
    value = os.environ.get(VARIABLE, "")
    if value not in {"", "fixed", "auto"}:
        raise PatchRefusedError(f"{VARIABLE}={value!r}: it takes auto or fixed")
    return value == "auto"


def needed(_target: Target) -> str | None:
    """None where the recipe asks for it."""
    return None if wanted() else f"the number of drafts is fixed ({VARIABLE}=auto lets it be chosen)"


def precondition(code: Code) -> Finding:
    """The scheduler looks the number up by the size of the batch, and hears of each step's result."""
    made = ast.unparse(code.find(_SCHEDULER, "Scheduler.__init__"))
    if "self.dynamic_sd_lookup = build_dynamic_sd_schedule_lookup(" not in made:
        return Finding.no(f"{_SCHEDULER}.Scheduler makes no table of drafts by size of batch")
    schedule = ast.unparse(code.find(_SCHEDULER, "Scheduler.schedule"))
    if "self.dynamic_sd_lookup[len(num_scheduled_tokens)]" not in schedule:
        return Finding.no(
            f"{_SCHEDULER}.Scheduler.schedule does not look the number of drafts up by requests"
        )
    if "num_spec_tokens_to_schedule=num_spec_tokens_to_schedule" not in schedule:
        return Finding.no(f"{_SCHEDULER}.Scheduler.schedule does not hand the number of drafts on")
    update = code.find(_SCHEDULER, "Scheduler.update_from_output")
    if (seen := look.parameters(update)) != ["self", "scheduler_output", "model_runner_output"]:
        return Finding.no(f"{_SCHEDULER}.Scheduler.update_from_output takes ({', '.join(seen)})")
    if "num_speculative_tokens_per_batch_size" not in ast.unparse(
        code.find(_SPECULATION, "SpeculativeConfig.uses_dynamic_speculative_decoding")
    ):
        return Finding.no(f"{_SPECULATION}: another setting says that the number of drafts changes")
    if missing := missing_hook(code):
        return Finding.no(missing)
    return Finding.yes("the scheduler takes the number of drafts from a table by the size of the batch")


def offer_choices(vllm_config: Any) -> None:
    """Say in the configuration that any of the policy's numbers may be drafted: graphs are captured for them.

    A table that is set in speculative_config stays, and with it there is no policy.
    """
    speculation = vllm_config.speculative_config
    if speculation is None or speculation.num_speculative_tokens_per_batch_size is not None:
        return
    if vllm_config.parallel_config.data_parallel_size > 1:
        raise PatchRefusedError(
            f"{VARIABLE}=auto: data-parallel ranks could choose apart\n  next: {VARIABLE}=fixed"
        )
    speculation.num_speculative_tokens_per_batch_size = offered(
        speculation.num_speculative_tokens, vllm_config.scheduler_config.max_num_seqs
    )


def offered(most: int, requests: int) -> list[tuple[int, int, int]]:
    """A table by which upstream captures graphs for all of the policy's numbers at all sizes of batch.

    They take turns. By this very table the scheduler knows, in another process, that the policy is wanted.
    """
    choices = list(reversed(candidates(most)))
    return [
        (size, size, choices[(size - 1) % len(choices)]) for size in range(1, max(requests, len(choices)) + 1)
    ]


def choose_while_serving(scheduler_class: type[Any]) -> None:
    """Have schedulers of this class ask a policy for the number of drafts, and tell it what came of them."""
    init, update = scheduler_class.__init__, scheduler_class.update_from_output

    @functools.wraps(init)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        speculation = self.vllm_config.speculative_config
        if self.dynamic_sd_lookup is None:
            return
        table = [tuple(row) for row in speculation.num_speculative_tokens_per_batch_size]
        if table == offered(speculation.num_speculative_tokens, len(table)):
            self.dynamic_sd_lookup = DraftPolicy(candidates(speculation.num_speculative_tokens))
            self.glmspark_watch = Watch()

    @functools.wraps(update)
    def updated(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        if isinstance(self.dynamic_sd_lookup, DraftPolicy):
            self.glmspark_watch.step(self.dynamic_sd_lookup, scheduler_output, model_runner_output)
        result = update(self, scheduler_output, model_runner_output)
        if isinstance(self.dynamic_sd_lookup, DraftPolicy) and not self.has_unfinished_requests():
            self.glmspark_watch.rest()
        return result

    scheduler_class.__init__ = made  # type: ignore[misc]
    scheduler_class.update_from_output = updated


class Watch:
    """Sees every step's result and tells the policy about those it can learn from."""

    def __init__(self) -> None:
        self._before: float | None = None
        self._drafts: int | None = None
        self._said = time.monotonic()
        self._alarmed = False

    def rest(self) -> None:
        """Nothing is left to do: the time until the next step is nobody's."""
        self._before = self._drafts = None

    def step(self, policy: DraftPolicy, planned: Any, result: Any) -> None:
        """A step's plan and result, as the scheduler gets them."""
        now = time.monotonic()
        drafts, self._drafts = self._drafts, int(planned.num_spec_tokens_to_schedule)
        before, self._before = self._before, now
        scheduled, drafted = planned.num_scheduled_tokens, planned.scheduled_spec_decode_tokens
        decoding = [name for name, count in scheduled.items() if count == 1 + len(drafted.get(name, ()))]
        if not scheduled or drafts is None or len(decoding) != len(scheduled):
            return
        sampled = result.sampled_token_ids
        rows = (result.req_id_to_index.get(name) for name in decoding)
        accepted = [max(0, len(sampled[row]) - 1) for row in rows if row is not None and row < len(sampled)]
        # A step verifies what the one before drafted, and drafts itself: its time is one number's where both
        # are the same.
        same = before is not None and drafts == self._drafts
        policy.observe(len(decoding), drafts, accepted, now - before if same and before is not None else None)
        self._say(policy, now)

    def _say(self, policy: DraftPolicy, now: float) -> None:
        if policy.collapsed != self._alarmed:
            self._alarmed = policy.collapsed
            if self._alarmed:
                logger.warning(
                    "drafts are hardly accepted any more (a quarter of their long mean): %s", policy.summary()
                )
        if now - self._said >= _SAYS_EVERY:
            self._said = now
            logger.info("drafts: %s", policy.summary())


def apply() -> None:
    """Register the rule, and wrap the scheduler's class."""
    from vllm.v1.core.sched.scheduler import Scheduler

    before_glm_config(offer_choices)
    choose_while_serving(Scheduler)


PATCH = Patch(
    name="draft-policy",
    title="The number of drafts a step, chosen while serving",
    upstream=(
        "the number of drafts is fixed, or a table by the size of the batch that one has to know beforehand. "
        "What pays depends on the text, the machine and the depth as well."
    ),
    reason=f"{VARIABLE}=auto asks for it",
    link="https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/v1/core/sched/scheduler.py",
    versions=">=0.32,<0.34",
    needed=needed,
    precondition=precondition,
    apply=apply,
)
