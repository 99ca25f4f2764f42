"""What is slow in each job, from the newest steps of its ranks.

The collector does not know the rules: `judge` is given to it, and gets facts of steps as a recording has them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from stepscope.collector.live.slowest import STEPS
from stepscope.collector.live.stream import State, Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.live.views import JobVerdict, LiveFinding
from stepscope.exporters.stream.protocol import StepSummary
from stepscope.exporters.stream.step_summary import facts_of
from stepscope.runtime.journal.records import RunRecord
from stepscope.runtime.windows.step_facts import Facts
from stepscope.runtime.windows.step_statistics import FIRST_STEPS

INTERVAL_S = 2.0
"""Seconds between two judgements."""
IDLE = 9
"""Judging takes at most one part in so many and one of the time: it is done less often if it takes long."""
MAX_RANKS = 64
"""Ranks of a job that are compared: half of them are the slowest, the others lie evenly over the rest."""
MAX_JOBS = 32
"""Jobs that are judged: those of which something came last."""
MAX_FINDINGS = 3


class LiveProcess(msgspec.Struct, frozen=True):
    """A process that runs, with facts of its newest steps."""

    rank: int | None
    """Its number in the job; `None` if it has none."""
    name: str
    """Of its profiler."""
    host: str
    pid: int
    facts: Facts
    """In the order of the steps, without the first ones of the run, which are not judged."""


Judge: TypeAlias = Callable[[Sequence[LiveProcess]], Sequence[LiveFinding]]
"""Says what is slow in a job, the most costly first. Called on a thread."""


class Verdicts:
    """Judges jobs whose ranks have done further steps, again and again."""

    def __init__(self, streams: Streams, judge: Judge) -> None:
        """
        Args:
            streams: the live state.
            judge: says what is slow.
        """
        self._streams, self._judge = streams, judge
        self._found: dict[str, JobVerdict] = {}
        self._judged_at: dict[str, float] = {}
        """When something had come last of each job that is judged, by the monotonic clock."""

    def of(self, job: str | None) -> list[JobVerdict]:
        """The newest verdict of a job, or of each job."""
        return [one for one in self._found.values() if job is None or one.job_id == job]

    async def run(self) -> None:
        """Judges until it is cancelled."""
        while True:
            began = time.monotonic()
            for job, streams in self._jobs().items():
                taken = [(stream.run, list(stream.summaries)) for stream in streams]
                verdict = await asyncio.to_thread(_verdict, job, taken, self._judge)
                if verdict is not None:
                    self._found[job] = verdict
            await asyncio.sleep(max(INTERVAL_S, IDLE * (time.monotonic() - began)))

    def _jobs(self) -> dict[str, list[Stream]]:
        """The jobs with further steps since the last time, with the ranks to compare."""
        now = time.monotonic()
        jobs: dict[str, list[Stream]] = {}
        for rank in self._streams:
            stream = rank.latest
            if stream.summaries and stream.state(now) is not State.DIED:
                jobs.setdefault(stream.job, []).append(stream)
        newest = {job: max(stream.steps_at for stream in streams) for job, streams in jobs.items()}
        latest = sorted(jobs, key=lambda job: -newest[job])[:MAX_JOBS]
        self._found = {job: verdict for job, verdict in self._found.items() if job in latest}
        chosen = {job: _compared(jobs[job]) for job in latest if newest[job] != self._judged_at.get(job)}
        self._judged_at = {job: newest[job] for job in latest}
        return chosen


def _compared(streams: list[Stream]) -> list[Stream]:
    """At most `MAX_RANKS` of these."""
    if len(streams) <= MAX_RANKS:
        return streams
    medians = [float(np.median(np.abs(stream.steps.newest(STEPS)["own_ms"]))) for stream in streams]
    order = np.argsort(medians)
    slowest = order[-MAX_RANKS // 2 :]
    rest = order[: -MAX_RANKS // 2]
    evenly = rest[np.linspace(0, len(rest) - 1, MAX_RANKS // 2).astype(np.int64)]
    return [streams[at] for at in sorted({*slowest.tolist(), *evenly.tolist()})]


def _verdict(job: str, ranks: Sequence[tuple[RunRecord, list[StepSummary]]], judge: Judge) -> JobVerdict | None:
    """`None` if no rank has a step that can be judged."""
    processes: list[LiveProcess] = []
    for run, summaries in ranks:
        facts = facts_of(summaries)
        facts = facts[facts["step"] >= FIRST_STEPS]
        if len(facts):
            processes.append(LiveProcess(run.rank, run.name, run.host, run.pid, facts))
    if not processes:
        return None
    return JobVerdict(
        job_id=job,
        at_ns=time.time_ns(),
        steps=max(len(process.facts) for process in processes),
        ranks=len(processes),
        findings=list(judge(processes))[:MAX_FINDINGS],
    )
