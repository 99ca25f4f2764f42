"""Judges the newest steps of processes that are still running, by the same rules as a recording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from stepscope.analysis.explain import findings_of, without_echoes
from stepscope.analysis.findings import Finding
from stepscope.analysis.reading.recording import Rank
from stepscope.analysis.rules.evidence import Job
from stepscope.analysis.tables.rank_summary import RankSummary
from stepscope.analysis.thresholds import FEWEST_STEPS
from stepscope.collector.live.verdicts import NEWEST_STEPS, LiveProcess
from stepscope.collector.live.views import LiveFinding
from stepscope.runtime.windows.step_facts import Facts

NEWEST = (NEWEST_STEPS, 96)
"""Newest steps that are judged apart from the others: faults that come back now and then are in more of them."""
OF_SINGLE_STEPS = {"slow-steps"}


class _LiveRank(Rank):
    """A process of which only facts of steps are known."""

    def __init__(self, process: LiveProcess, facts: Facts) -> None:
        run = process.run
        self.rank, self.name, self.host, self.pid = run.rank, run.name, run.host, run.pid
        self.path = Path()
        self.paths = []
        self.windows = {}
        self.damage = {}
        self.counts = Counter[int]()
        self.metadata = {}
        self.dropped = {}
        self.missing = {}
        self.ended = self.recovered = False
        self.known_steps = facts
        self._facts, self._only = facts, None


def judge_steps(processes: Sequence[LiveProcess], newest: Sequence[int] = NEWEST) -> list[LiveFinding]:
    """Findings in the newest steps of a job, the most costly first.

    The last `newest` of each process are judged, and all. A finding of several has the largest cost.

    Args:
        processes: of one job. Those with fewer than `FEWEST_STEPS` steps are not judged.
        newest: numbers of steps that are judged apart, such as (24, 96).
    """
    judged = [one for one in processes if len(one.facts) >= FEWEST_STEPS]
    if not judged:
        return []
    # Some have not sent their newest steps yet: the others are judged without these, as all ranks compare in the same steps.
    ahead = max(judged, key=lambda one: int(one.facts["step"][-1])).facts["step"]
    end = min(int(one.facts["step"][-1]) for one in judged if one.facts["step"][-1] > ahead[-1] - len(ahead) // 2)
    facts = [(one, one.facts[one.facts["step"] <= end]) for one in judged]
    facts = [(one, steps) for one, steps in facts if len(steps)]
    found = {one.id: one for one in _findings(facts, max(len(steps) for _, steps in facts))}
    for one in (one for count in newest for one in _findings(facts, count)):
        before = found.get(one.id)
        # One slow step among so few is no fault.
        if one.id not in OF_SINGLE_STEPS and (before is None or (one.cost or 0.0) > (before.cost or 0.0)):
            found[one.id] = one
    return [_live(one) for one in without_echoes(sorted(found.values(), key=lambda one: -(one.cost or 0.0)))]


def _live(finding: Finding) -> LiveFinding:
    return LiveFinding(
        id=finding.id,
        title=finding.title,
        evidence=[text for text in finding.evidence if text],
        action=finding.action,
        gain=finding.gain,
        cost=round(finding.cost or 0.0, 4),
        certainty=finding.certainty,
        ranks=list(finding.ranks),
        steps=list(finding.steps),
    )


def _findings(processes: Sequence[tuple[LiveProcess, Facts]], newest: int) -> tuple[Finding, ...]:
    return findings_of(Job([_summary(one, steps[-newest:]) for one, steps in processes]), FEWEST_STEPS)


def _summary(process: LiveProcess, facts: Facts) -> RankSummary:
    summary = RankSummary(_LiveRank(process, facts))
    summary.judged_steps = facts
    return summary
