"""Findings of each job, from the newest steps of its ranks.

The collector does not know the rules: `judge` is given to it, and gets facts of steps as a recording has them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

import msgspec
import numpy as np

from stepscope.collector.live.step_times import median
from stepscope.collector.live.stopped_steps import MOST_NAME, finding_of, running, stopped_of, without_late
from stepscope.collector.live.stream import JudgedSummary, State, Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.live.views import JobVerdict, LiveFinding
from stepscope.exporters.stream.step_summary import facts_of
from stepscope.runtime.display.text_table import printable, shorten
from stepscope.runtime.journal.records import RunRecord
from stepscope.runtime.windows.step_facts import Facts, join_facts
from stepscope.runtime.windows.step_statistics import FIRST_STEPS

log = logging.getLogger("stepscope.collector")

T = TypeVar("T")

INTERVAL_S = 2.0
"""Seconds between two judgements."""
MOST_SHARE = 0.1
"""Judging takes at most this share of the time: it is done less often if it takes long."""
MAX_RANKS = 64
"""Ranks of a job, and of one name, that are compared: half of them are the slowest, the others lie evenly over the rest."""
MAX_NAMES = 4
"""Names of runs in a job that are judged, each apart, as steps of training and of evaluation do not compare."""
MAX_STEPS = 512
"""Newest steps of a rank that are judged."""
NEWEST_STEPS = 24
"""Newest steps that are judged apart from the others, so that a fault which has just begun is found."""
MAX_JOBS = 32
"""Jobs that are judged: the ones with the newest data."""
MAX_FINDINGS = 3
SLOW_RANK = "slow-rank"
"""Id of the finding that names a rank that holds the others up."""


class LiveProcess(msgspec.Struct, frozen=True):
    """A process that runs, with facts of its newest steps."""

    run: RunRecord
    facts: Facts
    """Facts in the order of the steps, without the run's first steps, which are not judged."""


_Rank: TypeAlias = tuple[Stream, list[JudgedSummary]]
"""A rank, and its newest summaries."""
Judge: TypeAlias = Callable[[Sequence[LiveProcess]], Sequence[LiveFinding]]
"""Returns the findings in a job, the most costly first. Called on a thread."""


class Verdicts:
    """Judges jobs whose ranks have done further steps, again and again."""

    def __init__(self, streams: Streams, judge: Judge) -> None:
        self._streams, self._judge = streams, judge
        self._found: dict[str, JobVerdict] = {}
        self._slow: dict[str, set[tuple[str, int]]] = {}
        """Names of runs, and numbers of their ranks that hold the others up, by job."""
        self._failed: set[str] = set()
        """Jobs that could not be judged, which the log has."""
        self._stopped: dict[str, list[LiveFinding]] = {}
        """Findings about ranks whose steps have stopped, by job."""
        self._judged_at: dict[str, tuple[float, int]] = {}
        """For each judged job, the time of the newest facts, by the monotonic clock, and the number of ranks that sent some."""

    def of(self, job: str | None) -> list[JobVerdict]:
        """The newest verdict of a job, or of each job."""
        return [self._with_stop(one) for one in self._found.values() if job is None or one.job_id == job]

    def _with_stop(self, verdict: JobVerdict) -> JobVerdict:
        findings = [*self._stopped.get(verdict.job_id, ()), *verdict.findings][:MAX_FINDINGS]
        return msgspec.structs.replace(verdict, findings=findings)

    def slow_ranks(self) -> set[tuple[str, str, int]]:
        """Jobs, names of runs, and numbers of the ranks that hold the others up."""
        return {(job, *each) for job in self._found for each in self._slow.get(job, ())}

    async def run(self) -> None:
        """Judges jobs until it is cancelled."""
        while True:
            began = time.monotonic()
            for job, streams in self._jobs().items():
                summaries = [(stream, list(stream.summaries)) for stream in streams]
                try:
                    verdict = await asyncio.to_thread(self._verdict, job, summaries)
                except Exception:  # what one job's ranks send must not end the verdicts of the others
                    verdict = None
                    if job not in self._failed:
                        self._failed.add(job)
                        log.exception("the job %r cannot be judged", job[:200])
                if verdict is None:
                    self._found.pop(job, None)
                else:
                    self._found[job] = verdict
            await asyncio.sleep(max(INTERVAL_S, (time.monotonic() - began) * (1 / MOST_SHARE - 1)))

    def _verdict(self, job: str, ranks: list[_Rank]) -> JobVerdict | None:
        """`None` if no rank has a step that can be judged. On a thread."""
        groups: list[list[LiveProcess]] = []
        for members in _by_name(ranks, lambda one: one[0].run.name):
            processes: list[LiveProcess] = []
            for stream, summaries in _compared(members):
                facts = judged_steps(_facts(summaries))[-MAX_STEPS:]
                if len(facts):
                    processes.append(LiveProcess(stream.run, facts))
            if processes:
                groups.append(processes)
        if not groups:
            return None
        found = [(members[0].run.name, finding) for members in groups for finding in self._judge(members)]
        found = sorted(found, key=lambda each: -each[1].cost)[:MAX_FINDINGS]
        if len(groups) > 1:
            found = [(name, _of_runs(name, finding)) for name, finding in found]
        self._slow[job] = {(name, rank) for name, one in found if one.id == SLOW_RANK for rank in one.ranks}
        return JobVerdict(
            job_id=job,
            at_ns=time.time_ns(),
            steps=max(len(process.facts) for processes in groups for process in processes),
            ranks=sum(map(len, groups)),
            findings=[finding for _, finding in found],
        )

    def _jobs(self) -> dict[str, list[Stream]]:
        """The jobs with further steps since the last time, with the ranks that are compared. Notes which ranks have stopped."""
        now = time.monotonic()
        jobs: dict[str, list[Stream]] = {}
        for rank in self._streams:
            stream = rank.latest
            if stream.summaries and stream.state(now) is not State.DIED:
                jobs.setdefault(stream.job, []).append(stream)
        newest = {job: (max(one.steps_at for one in streams), len(streams)) for job, streams in jobs.items()}
        latest = sorted(jobs, key=lambda job: -newest[job][0])[:MAX_JOBS]
        self._found = {job: verdict for job, verdict in self._found.items() if job in latest}
        compared: dict[str, list[Stream]] = {}
        self._stopped = {}
        for job in latest:
            found = [_going_on(members, now) for members in _by_name(jobs[job], lambda stream: stream.run.name)]
            compared[job] = [stream for streams, _ in found for stream in streams]
            self._stopped[job] = [finding for _, finding in found if finding is not None]
        chosen = {job: compared[job] for job in latest if newest[job] != self._judged_at.get(job)}
        self._judged_at = {job: newest[job] for job in latest}
        self._failed &= set(latest)
        self._slow = {job: slow for job, slow in self._slow.items() if job in latest}
        return chosen


def _by_name(ranks: Iterable[T], name: Callable[[T], str]) -> list[list[T]]:
    """Ranks whose runs have one name, the most first; of at most `MAX_NAMES`."""
    found: dict[str, list[T]] = {}
    for one in ranks:
        found.setdefault(name(one), []).append(one)
    return sorted(found.values(), key=len, reverse=True)[:MAX_NAMES]


def _of_runs(name: str, finding: LiveFinding) -> LiveFinding:
    """The finding, whose evidence begins with the name of the runs."""
    return msgspec.structs.replace(
        finding, evidence=[f"in runs named {printable(shorten(name, MOST_NAME))}", *finding.evidence]
    )


def _going_on(streams: list[Stream], now: float) -> tuple[list[Stream], LiveFinding | None]:
    """The ranks that are compared, and a finding that names others. All ranks compare in the same steps, so one that has ended or is late
    would silence the verdict on those that go on; if none does, all are compared.

    Args:
        streams: of the runs of one name in a job, with summaries.
    """
    there = running(streams, now)
    return without_late(there) or streams, finding_of(stopped_of(there, now), there)


def judged_steps(facts: Facts) -> Facts:
    """Steps in the order of their numbers, each once, without the first ones of the run. A loop that counts anew, or a rank that sends
    nonsense, may have others."""
    facts = facts[(facts["step"] >= FIRST_STEPS) & (facts["end"] > facts["begin"])]
    _, last = np.unique(facts["step"][::-1], return_index=True)
    return facts[len(facts) - 1 - last]


def _facts(summaries: list[JudgedSummary]) -> Facts:
    """The facts of a rank's newest steps. Each summary has its own as long as they are judged: to make them takes time."""
    steps = 0
    for each in reversed(summaries):
        if steps >= MAX_STEPS:
            each.facts = None
            continue
        if each.facts is None:
            each.facts = facts_of([each.summary])
        steps += len(each.facts)
    return join_facts([each.facts for each in summaries if each.facts is not None])


def _compared(ranks: list[_Rank]) -> list[_Rank]:
    """At most `MAX_RANKS` of these processes."""
    if len(ranks) <= MAX_RANKS:
        return ranks
    order = np.argsort([_own_ms(stream) for stream, _ in ranks])
    slowest = order[-MAX_RANKS // 2 :]
    rest = order[: -MAX_RANKS // 2]
    evenly = rest[np.linspace(0, len(rest) - 1, MAX_RANKS // 2).astype(np.int64)]
    return [ranks[at] for at in sorted({*slowest.tolist(), *evenly.tolist()})]


def _own_ms(stream: Stream) -> float:
    """The median time of the newest steps without collectives, or of whole steps where these are not known."""
    steps = stream.steps.newest(NEWEST_STEPS)
    own = steps["own_ms"][steps["own_ms"] >= 0]
    times = own if len(own) else steps["ms"]
    return median(times) if len(times) else 0.0
