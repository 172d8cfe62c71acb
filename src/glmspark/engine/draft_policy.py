"""How many tokens to draft, chosen for each step from what drafting has brought and what it has cost.

More drafts a step mean more tokens a step as long as they are accepted, and a longer step. Both are measured
while serving: for each place in a draft how often the model accepted it, and for each number of drafts how
long a step took, by the size of the batch. The policy takes the number with the most tokens a second, which
may be none, and now and then tries another, for what pays may change: that may cost it `TRIALS` of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["DraftPolicy", "candidates"]

TRIALS = 0.01
"""Share of the time that trying other numbers may cost."""
TRIAL = 6
"""Steps of one trial, from the first that is all of its kind."""
DECIDE = 16
"""Steps between two decisions."""
MEMORY = 400
"""Verified drafts after which half of what is remembered of a place's acceptance is new."""
STEPS = 40
"""The same for the time of a step."""
CLEARLY = 1.01
"""So many times faster another number has to be to be taken."""
COLLAPSED = 0.25
"""Acceptance below this share of its long mean is an alarm."""


def candidates(most: int) -> list[int]:
    """Numbers of drafts that are worth a choice: none, and powers of two up to `most`."""
    found = [0]
    step = 1
    while step < most:
        found.append(step)
        step *= 2
    return [*found, most]


@dataclass
class Mean:
    """A mean that forgets: weights of what is older shrink once `memory` of it has been seen."""

    memory: float
    value: float = 0.0
    weight: float = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        """One more observation, of a weight."""
        self.weight = min(self.weight, self.memory) + weight
        self.value += (value - self.value) * weight / self.weight


@dataclass
class Batch:
    """What is known of batches of about one size. strange: steps in a row that took far too long."""

    chosen: int
    times: dict[int, Mean] = field(default_factory=dict)
    tried: dict[int, int] = field(default_factory=dict)
    steps: int = 0
    strange: int = 0
    trial: int | None = None
    left: int = 0


class DraftPolicy:
    """`policy[n]` is the number of drafts for a batch of n requests; `observe` tells it what came of a step.

    Not thread-safe: vLLM's scheduler calls both from one thread.
    """

    def __init__(self, choices: Sequence[int]) -> None:
        self.choices = sorted(set(choices))
        if not self.choices or self.choices[0] < 0 or self.choices[-1] < 1:
            raise ValueError(f"{list(choices)} are no numbers of drafts to choose from")
        most = self.choices[-1]
        self._accepted = [Mean(MEMORY) for _ in range(most)]  # share of requests with the place accepted
        self._batches: dict[int, Batch] = {}
        self._elapsed = self._lost = 0.0
        self._recent, self._usual = Mean(MEMORY), Mean(20 * MEMORY)
        self.collapsed = False

    def __getitem__(self, size: int) -> int:
        """How many tokens to draft for each of `size` requests."""
        batch = self._batch(size)
        return batch.chosen if batch.trial is None else batch.trial

    def observe(self, size: int, drafts: int, accepted: Sequence[int], seconds: float | None) -> None:
        """A step of `size` requests in which up to `drafts` tokens of each were verified.

        accepted: how many of each request were. seconds: how long the step took, None where that is not
        known or the step before drafted another number.
        """
        if not accepted:
            return
        if drafts:
            for place in range(min(drafts, len(self._accepted))):
                share = sum(count > place for count in accepted) / len(accepted)
                self._accepted[place].add(share, len(accepted))
            self._watch(sum(accepted) / len(accepted) / drafts, len(accepted))
        batch = self._batch(size)
        if seconds is None or not self._time(batch, drafts, seconds):
            return
        self._elapsed += seconds
        if batch.trial is not None:
            if drafts == batch.trial:
                best = self._rate(batch, batch.chosen)
                if best:
                    self._lost += max(0.0, seconds - (1 + sum(accepted) / len(accepted)) / best)
                batch.left -= 1
            if batch.left <= 0:
                batch.tried[batch.trial] = batch.steps
                batch.trial = None
                self._decide(batch)
            return
        if drafts != batch.chosen:
            return
        batch.steps += 1
        batch.tried[drafts] = batch.steps
        if batch.steps % DECIDE == 0 or (len(batch.times) < 3 and batch.steps >= TRIAL // 2):
            self._decide(batch)
            self._try(batch)

    def expected(self, drafts: int) -> float:
        """Tokens a step and request with so many drafts, the model's own included."""
        total, share = 1.0, 1.0
        for place in range(drafts):
            seen = self._accepted[place]
            # Where no draft was that long yet, acceptance is taken to go on falling as it did.
            share = seen.value if seen.weight else share * self._falling()
            total += share
        return total

    def summary(self) -> dict[str, object]:
        """What it knows, as JSON data: shares accepted by place; times (ms) and choice by size of batch."""
        return {
            "accepted": [round(mean.value, 3) for mean in self._accepted if mean.weight],
            "batches": {
                f"{1 << number}-{(2 << number) - 1}": {
                    "drafts": batch.chosen,
                    "ms": {str(k): round(1e3 * mean.value, 2) for k, mean in sorted(batch.times.items())},
                }
                for number, batch in sorted(self._batches.items())
            },
            "trials_cost": round(self._lost / self._elapsed, 4) if self._elapsed else 0.0,
        }

    # --- what is known --------------------------------------------------------------------------------------

    def _batch(self, size: int) -> Batch:
        number = max(1, size).bit_length() - 1
        if number not in self._batches:
            near = min(self._batches, key=lambda other: abs(other - number), default=None)
            self._batches[number] = Batch(self.choices[-1] if near is None else self._batches[near].chosen)
        return self._batches[number]

    def _falling(self) -> float:
        seen = [mean.value for mean in self._accepted if mean.weight]
        if len(seen) < 2 or seen[-2] <= 0:
            return 0.7
        return min(1.0, seen[-1] / seen[-2])

    def _time(self, batch: Batch, drafts: int, seconds: float) -> bool:
        """Note a step's time; False for one that stands for something else than a step."""
        mean = batch.times.setdefault(drafts, Mean(STEPS))
        if mean.weight >= 4 and seconds > 4 * mean.value and batch.strange < 8:
            batch.strange += 1
            return False
        if batch.strange >= 8:
            mean.value, mean.weight = 0.0, 0.0  # it has become another step
        batch.strange = 0
        mean.add(seconds)
        return True

    def _rate(self, batch: Batch, drafts: int) -> float | None:
        """Tokens a second and request, None where no step with so many drafts was timed."""
        mean = batch.times.get(drafts)
        return self.expected(drafts) / mean.value if mean is not None and mean.value > 0 else None

    def _guess(self, batch: Batch, drafts: int) -> float:
        """The rate, with a time between or beside those that are known where its own is not."""
        if (known := self._rate(batch, drafts)) is not None:
            return known
        times = sorted((k, mean.value) for k, mean in batch.times.items() if mean.weight)
        if not times:
            return 0.0
        below = [t for t in times if t[0] < drafts] or times[:1]
        above = [t for t in times if t[0] > drafts] or times[-1:]
        (low, fast), (high, slow) = below[-1], above[0]
        share = (drafts - low) / (high - low) if high != low else 0.0
        time = fast + share * (slow - fast) if 0 <= share <= 1 else fast
        return self.expected(drafts) / max(time, 1e-9)

    def _watch(self, share: float, weight: int) -> None:
        self._recent.add(share, weight)
        self._usual.add(share, weight)
        if self._usual.weight >= 4 * MEMORY:
            self.collapsed = self._recent.value < COLLAPSED * self._usual.value

    # --- what is done ---------------------------------------------------------------------------------------

    def _decide(self, batch: Batch) -> None:
        rates = {k: rate for k in batch.times if (rate := self._rate(batch, k)) is not None}
        if not rates:
            return
        best = max(rates, key=lambda k: rates[k])
        if rates[best] > CLEARLY * rates.get(batch.chosen, 0.0):
            batch.chosen = best

    def _try(self, batch: Batch) -> None:
        """Begin a trial of another number, if one may be better and trials have not cost too much."""
        rate = self._rate(batch, batch.chosen)
        if rate is None:
            return
        others = [k for k in self.choices if k != batch.chosen]
        # None and the most come first: between them the others' times can be guessed.
        new = [k for k in (self.choices[0], self.choices[-1]) if k in others and k not in batch.times]
        if not new:
            new = [k for k in others if k not in batch.times and 1.05 * self._guess(batch, k) > rate]
        if new:
            self._begin(batch, new[0])
            return
        allowed = self._lost < TRIALS * self._elapsed
        worth = [k for k in others if self._guess(batch, k) > 0.6 * rate] or others
        if not allowed or not worth:
            return
        # With no drafts nothing is learnt of acceptance: then whatever was tried last the longest ago.
        oldest = min(worth, key=lambda k: batch.tried.get(k, -1))
        waited = batch.steps - batch.tried.get(oldest, 0)
        loss = TRIAL * max(0.02, 1 - self._guess(batch, oldest) / rate)
        if waited * TRIALS > loss:
            self._begin(batch, oldest)

    def _begin(self, batch: Batch, drafts: int) -> None:
        # What was never tried may be far worse: a shorter look tells.
        batch.trial, batch.left = drafts, TRIAL if drafts in batch.times else TRIAL // 2
