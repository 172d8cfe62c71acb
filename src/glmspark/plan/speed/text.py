"""How many tokens a step makes: acceptance by drafter and by kind of text."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log, sqrt
from typing import Literal

from glmspark.plan.speed.constants import Prior

__all__ = ["ACCEPTANCE", "KINDS", "Text", "accepted", "expected_tokens", "tokens_spread"]

Text = Literal["prose", "code", "structured", "mixed"]
KINDS: tuple[Text, ...] = ("prose", "code", "structured", "mixed")

ACCEPTANCE: dict[str, Prior] = {
    "mtp prose": Prior(0.70, 0.4, "2.27 of 3 and 2.33 of 4 tokens a step (ajclark, drowzeys)"),
    "mtp code": Prior(0.90, 0.5, "2.91 of 3 (ajclark)"),
    "mtp structured": Prior(0.97, 0.5, "5.4 to 6.0 of 6 (0xdfi)"),
    "mtp-flash prose": Prior(0.65, 0.4, "as GLM-5.2's, a little less"),
    "mtp-flash code": Prior(0.85, 0.5, "as GLM-5.2's, a little less"),
    "mtp-flash structured": Prior(0.95, 0.5, "as GLM-5.2's, a little less"),
    "dflash2 prose": Prior(0.64, 0.4, "2.7 of 8 (ajclark)"),
    "dflash2 code": Prior(0.93, 0.5, "6.5 of 8 (ajclark)"),
    "dflash2 structured": Prior(0.99, 0.5, "7.87 of 8 (ajclark)"),
    "dflash2-flash prose": Prior(0.50, 0.4, "1.92 of 8 in several languages (NNNtrance)"),
    "dflash2-flash code": Prior(0.86, 0.5, "5.45 of 8 (NNNtrance)"),
    "dflash2-flash structured": Prior(0.97, 0.5, "as GLM-5.3's"),
    "dspark prose": Prior(0.57, 0.4, "2.0 of 4 and 2.16 of 8 (drowzeys)"),
    "dspark code": Prior(0.80, 0.5, "the card's 3.97 of 8 on its own data (RedHatAI)"),
    "dspark structured": Prior(0.95, 0.5, "no figure is published"),
    "lookup prose": Prior(0.20, 0.8, "n-grams seldom repeat in prose; no figure is published for GLM"),
    "lookup code": Prior(0.55, 0.8, "no figure is published for GLM"),
    "lookup structured": Prior(0.85, 0.8, "no figure is published for GLM"),
}
"""Chance that a drafted token is accepted, given that those before it were. sigma: of its logit."""


def accepted(drafter: str, text: Text, rates: Mapping[str, float]) -> float:
    """That chance; of mixed text the middle of prose and code."""
    if text == "mixed":
        return (rates[f"{drafter} prose"] + rates[f"{drafter} code"]) / 2
    return rates[f"{drafter} {text}"]


def expected_tokens(rate: float, drafts: int) -> float:
    """Tokens of a step: one is always made, and drafts count up to the first that is refused."""
    return 1.0 + sum(rate**position for position in range(1, drafts + 1))


def tokens_spread(drafter: str, text: Text, drafts: int, rates: Mapping[str, float], sigma: float) -> float:
    """Sigma of the logarithm of a step's tokens where only the kind of text is known.

    sigma: of the logit of acceptance between texts of one kind. Mixed text may be anything between prose and
    code, which is added to it.
    """
    spread = sigma
    if text == "mixed":
        apart = _logit(rates[f"{drafter} code"]) - _logit(rates[f"{drafter} prose"])
        spread = sqrt(sigma**2 + (apart / 4) ** 2)
    middle = _logit(accepted(drafter, text, rates))
    most, least = (expected_tokens(1 / (1 + exp(-(middle + sign * spread))), drafts) for sign in (1, -1))
    return log(most / least) / 2


def _logit(rate: float) -> float:
    return log(rate / (1 - rate))
