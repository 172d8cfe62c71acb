"""Plans: does it fit, which rank holds what, which flags. Pure functions, no torch."""

from glmspark.plan.errors import PlanError
from glmspark.plan.facts import MachineFacts
from glmspark.plan.local import plan_local
from glmspark.plan.plan import Endpoint, Limits, Memory, Plan, Rank

__all__ = ["Endpoint", "Limits", "MachineFacts", "Memory", "Plan", "PlanError", "Rank", "plan_local"]
