"""From hits and facts to findings, ranked by how sure they are. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from glmspark.symptoms.catalogue import Severity, Symptom, catalogue
from glmspark.symptoms.facts import Facts
from glmspark.symptoms.scan import Hit, Scanner

__all__ = ["Finding", "causes_of", "first_in", "match", "ruled_out"]

NAMED = "reason.symptom"
"""The fact by which a record says what was found when it ended."""

_CONFIRMED = 0.5  # of the doubt goes with each fact that confirms
_OLD = 0.4  # of how sure a line makes it, where it may be an old one
_ALSO = 0.85  # what follows from a surer one is less sure by this factor


@dataclass(frozen=True)
class Finding:
    """A symptom that shows. sure: 0 to 1. evidence: lines and facts; follows: the finding that covers it."""

    symptom: Symptom
    sure: float
    evidence: tuple[str, ...]
    follows: str | None = None
    hits: tuple[Hit, ...] = ()

    @property
    def words(self) -> str:
        """How sure, for people."""
        if self.follows is not None or self.symptom.severity is Severity.FOLLOWS:
            return "follows"
        return "almost certain" if self.sure >= 0.85 else "likely" if self.sure >= 0.6 else "possible"

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        one = self.symptom
        return {
            "name": one.name,
            "title": one.title,
            "severity": str(one.severity),
            "sure": round(self.sure, 2),
            "words": self.words,
            "follows": self.follows,
            "evidence": list(self.evidence),
            "seen": [{"source": hit.source, "line": hit.first, "times": hit.times} for hit in self.hits],
            "cause": one.cause,
            "remedy": one.remedy,
            "sources": list(one.sources),
        }


def match(hits: Sequence[Hit], facts: Facts, *, old: Collection[str] = ()) -> list[Finding]:
    """What shows, the surest first; what follows from something else, or only says that something failed,
    comes last. Of equally sure ones that which was said first.

    old: sources whose lines may be of long before, such as a kernel's log since the start: by themselves they
    make little sure.
    """
    found = [one for symptom in catalogue() if (one := _judge(symptom, hits, facts, old)) is not None]
    by_name = {one.symptom.name: one for one in found}
    covered = {
        name: one.symptom.name
        for one in found
        for name in one.symptom.covers
        if name in by_name and one.symptom.severity is not Severity.FOLLOWS
    }
    result = [
        Finding(one.symptom, one.sure * _ALSO, one.evidence, covered[one.symptom.name], one.hits)
        if one.symptom.name in covered
        else one
        for one in found
    ]
    return sorted(result, key=_order)


def _order(finding: Finding) -> tuple[bool, float, int, str]:
    first = min((hit.first for hit in finding.hits), default=1 << 62)
    return finding.words == "follows", -round(finding.sure, 2), first, finding.symptom.name


def _judge(symptom: Symptom, hits: Sequence[Hit], facts: Facts, old: Collection[str]) -> Finding | None:
    mine = tuple(hit for hit in hits if hit.symptom == symptom.name)
    shown = [condition.found(facts) for condition in symptom.when]
    named = [one for one in facts.known.get(NAMED, ()) if one.value == symptom.name]
    by_facts = bool(named) or (bool(shown) and all(one is not None for one in shown))
    if not mine and not by_facts:
        return None
    if any(condition.found(facts) is not None for condition in symptom.rules_out):
        return None
    evidence = [f"{hit.source}:{hit.first}: {hit.lines[0]}" for hit in mine if hit.lines]
    recent = any(hit.source not in old for hit in mine)
    doubt = 1 - symptom.sure * (1 if recent else _OLD) if mine else 1.0
    if by_facts:
        doubt *= 1 - symptom.sure
        evidence += [str(one) for one in (*named, *shown) if one is not None]
    for condition in symptom.confirms:
        if (fact := condition.found(facts)) is not None:
            doubt *= 1 - _CONFIRMED
            evidence.append(str(fact))
    return Finding(symptom, 1 - doubt, tuple(dict.fromkeys(evidence)), hits=mine)


def ruled_out(hits: Sequence[Hit], facts: Facts) -> list[tuple[Symptom, str]]:
    """Symptoms whose lines are there and which a fact speaks against, with that fact."""
    found = []
    for symptom in catalogue():
        against = next((fact for one in symptom.rules_out if (fact := one.found(facts)) is not None), None)
        if against is not None and any(hit.symptom == symptom.name for hit in hits):
            found.append((symptom, str(against)))
    return found


def first_in(text: str | None, facts: Facts | None = None) -> Finding | None:
    """The surest symptom of a short text, such as the first error of a log; None where nothing shows, or
    only that something failed."""
    scanner = Scanner(catalogue())
    scanner.read([(text or "").encode("utf-8", "replace")], "error")
    found = match(scanner.hits, facts or Facts())
    return found[0] if found and found[0].words != "follows" else None


def causes_of(canary: str) -> tuple[str, ...]:
    """Likely causes of a failure of a kind of canary, the likeliest first: those the catalogue has."""
    return tuple(one.brief for one in catalogue() if canary in one.canaries and one.brief is not None)
