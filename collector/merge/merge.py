"""Plays the streams of a job into exporters, as one run or as one run for each rank."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
import numpy as np

from stepscope.collector.live.verdicts import Judge, LiveProcess, judged_steps
from stepscope.collector.live.views import LiveFinding
from stepscope.collector.merge.aligned import AlignedEvents, Sharing
from stepscope.collector.merge.plan import MergedWindow, Stretch, repeated_steps
from stepscope.collector.merge.report import MemberReport, MergeReport, evicted, member_report
from stepscope.collector.runs.job import Job, Member
from stepscope.collector.runs.recording import UnreadableJournal
from stepscope.exporters.parquet import ParquetExporter
from stepscope.runtime.accounting.ledger import Ledger, sum_ledgers
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.export.exporter import Exporter
from stepscope.runtime.export.run import Run
from stepscope.runtime.journal.records import RunRecord
from stepscope.runtime.session.ranks import ranges_text
from stepscope.runtime.windows.step_facts import Facts, StepFactsBuilder, join_facts
from stepscope.runtime.windows.window import Step, Window

Progress = Callable[[int], object]
"""Called with the number of events written so far."""


class Merge:
    """One merge. Memory depends on the number of ranks and steps, not on that of events.

    Args:
        windows: what of them, as `plan` has it.
        judge: says what is slow in the merged steps; default: the report does not say it.
    """

    def __init__(
        self,
        job: Job,
        windows: Sequence[MergedWindow],
        directory: Path,
        progress: Progress = lambda events: None,
        *,
        unreadable: Sequence[UnreadableJournal] = (),
        notes: Sequence[str] = (),
        judge: Judge | None = None,
    ) -> None:
        self._job, self._windows, self._directory, self._progress = job, windows, directory, progress
        self._unreadable, self._notes = unreadable, list(notes)
        self._judge = judge
        self._facts: dict[int, Facts] = {}
        """Facts of the merged steps, by the numbers of members."""
        self._findings: list[LiveFinding] = []
        self._events = 0
        self._members: dict[int, MemberReport] = {}
        self._parts: dict[int, list[tuple[Stretch, int]]] = {}
        for window in windows:
            for stretch in window.stretches:
                self._parts.setdefault(stretch.member.number, []).append((stretch, window.index))
        starts = [stretch.member.reference(stretch.start_ns) for window in windows for stretch in window.stretches]
        begin = min(starts)
        self._anchor = ClockAnchor(begin, begin, 0)

    async def together(self, exporter: Exporter) -> MergeReport:
        """Plays everything into one exporter, each member as processes of its own.

        Raises:
            OSError, FormatError: if a stream cannot be read any more.
            OutputError, ...: what the exporter raised, after it was closed.
        """
        async with _opened(exporter, self._job_run()):
            for member in self._present():
                if isinstance(exporter, ParquetExporter):
                    await exporter.begin_member(self._member_run(member))
                async with self._reading(member, "job") as events:
                    await self._play(events, exporter)
            await self._find()
            for window in self._windows:
                await exporter.close_window(self._window(window, window.stretches))
        return self.report()

    async def apart(self, exporter_for: Callable[[int | None, Member], Exporter]) -> MergeReport:
        """Plays each rank into an exporter of its own; the times of all are aligned.

        Raises:
            OSError, FormatError: if a stream cannot be read any more.
            OutputError, ...: what an exporter raised, after it was closed.
        """
        for members in self._by_rank():
            first = members[0]
            exporter = exporter_for(first.rank, first)
            async with _opened(exporter, self._member_run(members[-1], members)):
                for member in members:
                    async with self._reading(member, "rank") as events:
                        await self._play(events, exporter)
                numbers = {member.number for member in members}
                for window in self._windows:
                    own = [stretch for stretch in window.stretches if stretch.member.number in numbers]
                    if own:
                        await exporter.close_window(self._window(window, own))
        await self._find()
        return self.report()

    def report(self) -> MergeReport:
        """The report, so far."""
        missing = self._job.missing
        return MergeReport(
            job=self._job.name,
            clock=self._job.timeline.reference,
            windows=[window.index for window in self._windows],
            events=self._events,
            members=[self._members.get(m.number) or member_report(m, *self._range(m), 0) for m in self._job.members],
            missing_ranks=ranges_text(missing),
            missing_count=sum(map(len, missing)),
            absent=_absent(self._windows),
            findings=self._findings,
            unreadable=list(self._unreadable),
            notes=[
                *self._notes,
                *evicted(self._job.members),
                *self._job.concurrent(),
                *repeated_steps(self._windows),
            ],
        )

    async def _play(self, events: AlignedEvents, exporter: Exporter) -> None:
        builders: dict[int, StepFactsBuilder] = {}
        # Nothing else needs the loop: in one thread, what one step made is still in the processor's cache for the next.
        for batch in events:
            await anyio.lowlevel.checkpoint()
            await exporter.export(batch)
            if self._judge is not None:
                builders.setdefault(batch.window, StepFactsBuilder()).update(batch.events)
            self._events += len(batch)
            self._progress(self._events)
        self._facts[events.member.number] = self._facts_of(events.member, builders)

    def _facts_of(self, member: Member, builders: Mapping[int, StepFactsBuilder]) -> Facts:
        """The facts of a member's steps, by windows of the merged trace; nothing follows the last step of a window."""
        ends: dict[int, int] = {}
        for stretch, index in self._parts[member.number]:
            _, _, steps = _aligned_window(stretch)
            if steps:
                ends[index] = steps[-1].end_ns
        return join_facts(
            [
                builder.finish(*([ends[index]] if index in ends else ()), window=index)
                for index, builder in sorted(builders.items())
            ]
        )

    async def _find(self) -> None:
        """Judges the merged steps. Where a rank did a step again after it was started again, the last time counts."""
        if self._judge is None:
            return
        processes = [
            LiveProcess(
                members[-1].recording.run, judged_steps(join_facts([self._facts[one.number] for one in members]))
            )
            for members in self._by_rank()
        ]
        try:
            self._findings = list(await anyio.to_thread.run_sync(self._judge, processes))
        except Exception as error:  # what one stream claims of its steps must not cost the others their trace
            self._notes.append(f"the cause of slow steps is not known: {type(error).__name__}: {error}"[:500])

    @asynccontextmanager
    async def _reading(self, member: Member, sharing: Sharing) -> AsyncGenerator[AlignedEvents]:
        before = self._events
        events = await anyio.to_thread.run_sync(
            AlignedEvents, self._parts[member.number], sharing, len(self._job.members)
        )
        try:
            yield events
        finally:
            events.close()
        if self._events > before or member.number not in self._members:
            self._members[member.number] = member_report(
                member, *self._range(member), self._events - before, events.damage
            )

    def _present(self) -> list[Member]:
        return [member for member in self._job.members if member.number in self._parts]

    def _by_rank(self) -> list[list[Member]]:
        ranks: dict[int | RunRecord, list[Member]] = {}
        for member in self._present():
            ranks.setdefault(member.recording.process if member.rank is None else member.rank, []).append(member)
        return list(ranks.values())

    def _range(self, member: Member) -> tuple[int, int]:
        """Begin and end of the part of a member that is merged, or of all that exists of it."""
        parts = [stretch for stretch, _ in self._parts.get(member.number, ())]
        if not parts:
            return member.recording.first_ns, member.recording.last_ns
        return min(part.start_ns for part in parts), max(part.end_ns for part in parts)

    def _job_run(self) -> Run:
        return Run(
            name=self._job.name,
            output_dir=self._directory,
            pid=1,
            host="merged",
            rank=None,
            world_size=None,
            anchor=self._anchor,
            metadata=lambda: {"merged": msgspec.to_builtins(self.report())},
            ledger=lambda: self._ledger(self._present()),
            job=self._job.name,
        )

    def _member_run(self, member: Member, starts: Sequence[Member] = ()) -> Run:
        """Args: a member, and all starts of its rank if one output has them all."""
        record = member.recording.run
        about = msgspec.to_builtins(member_report(member, *self._range(member), 0))
        return Run(
            name=record.name,
            output_dir=self._directory,
            pid=record.pid,
            host=record.host,
            rank=member.rank,
            world_size=record.world_size,
            anchor=self._anchor,
            metadata=lambda: {**member.recording.metadata, "aligned clock": about},
            ledger=lambda: self._ledger(starts or [member]),
            job=self._job.name,
        )

    def _ledger(self, members: Sequence[Member]) -> Ledger:
        """The accounts of all recorded events; of a run that did not end, those of its merged windows."""
        ledgers = [(member.label, member.recording.ledger or self._accounts(member)) for member in members]
        return ledger_of(ledgers) if len(ledgers) > 1 else ledgers[0][1]

    def _accounts(self, member: Member) -> Ledger:
        return sum_ledgers(stretch.window.ledger for stretch, _ in self._parts.get(member.number, ()))

    def _window(self, window: MergedWindow, stretches: Sequence[Stretch]) -> Window:
        rows = [_aligned_window(stretch) for stretch in stretches]
        steps: dict[int, tuple[int, int]] = {}
        for _, _, aligned in rows:
            for step in aligned:
                before = steps.get(step.number, (step.start_ns, step.end_ns))
                steps[step.number] = (min(before[0], step.start_ns), max(before[1], step.end_ns))
        start, end = min(start for start, _, _ in rows), max(end for _, end, _ in rows)
        labels = len(stretches) > 1
        notes = [
            f"{stretch.member.label}: {note}" if labels else note
            for stretch in stretches
            for note in stretch.window.diagnostics
        ]
        return Window(
            index=window.index,
            profiler=self._job.name,
            start_ns=start,
            end_ns=end,
            steps=tuple(Step(number, *times) for number, times in sorted(steps.items())),
            complete=all(stretch.window.complete and stretch.whole for stretch in stretches) and not window.absent,
            diagnostics=(*notes, *(f"{member.label} has nothing of this window" for member in window.absent)),
            ledger=ledger_of((stretch.member.label, stretch.window.ledger) for stretch in stretches)
            if labels
            else stretches[0].window.ledger,
            metadata={stretch.member.label: dict(stretch.window.metadata) for stretch in stretches}
            if labels
            else stretches[0].window.metadata,
            wall_start_ns=start,
        )


def ledger_of(ledgers: Iterable[tuple[str, Ledger]]) -> Ledger:
    """Combines the ledgers of several members into one.

    Args:
        ledgers: whose each is, and what it says. Sources and outputs are called `rank 0: recorder` then.
    """
    return sum_ledgers(
        Ledger(
            {f"{label}: {name}": source for name, source in ledger.sources.items()},
            {f"{label}: {name}": output for name, output in ledger.outputs.items()},
            ledger.cut,
            ledger.windows_left_out,
        )
        for label, ledger in ledgers
    )


def _absent(windows: Iterable[MergedWindow]) -> list[str]:
    """Members that lack windows, each with all that it lacks, such as `rank 1: windows 3-5`."""
    lacked: dict[str, list[range]] = {}
    for window in windows:
        for member in window.absent:
            ranges = lacked.setdefault(member.label, [])
            follows = ranges and ranges[-1].stop == window.index
            ranges.append(range(ranges.pop().start if follows else window.index, window.index + 1))
    return [
        f"{label}: window{'s' if sum(map(len, ranges)) > 1 else ''} {ranges_text(ranges)}"
        for label, ranges in lacked.items()
    ]


def _aligned_window(stretch: Stretch) -> tuple[int, int, list[Step]]:
    times = [stretch.start_ns, stretch.end_ns, *(at for step in stretch.steps for at in (step.start_ns, step.end_ns))]
    start, end, *rest = stretch.member.model.to_reference(np.array(times, np.int64)).tolist()
    starts, ends = rest[::2], rest[1::2]
    return start, end, [Step(step.number, *at) for step, *at in zip(stretch.steps, starts, ends, strict=True)]


@asynccontextmanager
async def _opened(exporter: Exporter, run: Run) -> AsyncGenerator[None]:
    await exporter.open(run)
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await exporter.aclose()
