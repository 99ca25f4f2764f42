"""A recording as arrays: `stepscope.load`."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.analysis.reading.run_choice import Launch, launches_in, perhaps_newer
from stepscope.analysis.tables.flops import PEAK, read_peak
from stepscope.collector.merge.sources import gather
from stepscope.collector.runs import recording as runs
from stepscope.collector.runs.evicted import beyond
from stepscope.collector.runs.recording import stream_of
from stepscope.runtime.accounting.ledger import sum_ledgers
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.errors import FormatError, NoWindowError
from stepscope.runtime.events import strings
from stepscope.runtime.events.intervals import FOREVER
from stepscope.runtime.events.record import Block, EventBatch, join_blocks
from stepscope.runtime.events.tables import columns_of_events
from stepscope.runtime.journal import segments
from stepscope.runtime.journal.format import EventsHeader
from stepscope.runtime.journal.frame_reader import Damage, FrameReader
from stepscope.runtime.journal.index import WindowRow, rows_of
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.replay import WITHOUT_END
from stepscope.runtime.session.note import JOURNAL, WINDOWS, can_recover
from stepscope.runtime.settings.arguments import path_argument
from stepscope.runtime.windows.step_facts import Facts, StepFactsBuilder
from stepscope.runtime.windows.step_parts import columns_of
from stepscope.runtime.windows.step_statistics import startup_step
from stepscope.runtime.windows.window import Step, Window, which_windows

_READ_BYTES = 1 << 20


class Rank:
    """One process's recording.

    Attributes:
        rank: its number in the job; `None` if it had none.
        world_size: number of the job's ranks; `None` if that is not known.
        name: of its profiler.
        host: on which it ran.
        pid: of the process.
        path: the file; of a flight recorder, which writes one for each window, the first of `paths`.
        windows: closed windows, by number.
        metadata: of the run.
        counts: events of each window.
        dropped: events that were lost, by reason.
        missing: ns for which a source has no events, or not all, although it should have recorded; by source.
        ended: whether the run was closed in order.
        recovered: whether this is what `stepscope recover` made of it.
        damage: sentences on files that could not be read whole, by path; all of them once its events were read.
        missing_steps: a sentence on steps that are missing and were left out; empty if there are none.
    """

    missing_steps = ""
    _deleted: tuple[str, ...] = ()
    """Sentences on journals whose oldest files were deleted."""
    foreign = False
    """Whether another program than stepscope recorded it."""
    rows: Sequence[WindowRow] = ()
    """The rows of the indexes: one for each window that has an end."""
    known_steps: Facts | None = None
    """The facts of its steps, if they do not have to be computed from its events."""
    startup_ns = shutdown_ns = 0
    """Time that was recorded before the first step and after the last. It is known once the events were read."""

    def __init__(self, *recordings: runs.Recording, only: Collection[int] | None = None) -> None:
        """Args: of one run; numbers of the windows that are read, by default all. Those without an end are read anyway."""
        found, *others = recordings
        self.rank = found.run.rank
        self.world_size = found.run.world_size
        self.name = found.run.name
        self.host = found.run.host
        self.pid = found.run.pid
        self.path = found.path
        self.windows: dict[int, Window] = {}
        self.damage: dict[Path | int, str] = {}
        self.rows = [row for each in (found, *others) for row in rows_of(each.rows) if row.closed]
        self.counts = Counter[int]()
        for each in (found, *others):
            self.counts.update(dict(zip(each.rows["window"].tolist(), each.rows["events"].tolist(), strict=True)))
        self.metadata = found.metadata
        self.dropped: dict[str, int] = {}
        self.missing: dict[str, int] = {}
        self.paths = [each.path for each in (found, *others)]
        self._gaps = {each.path: each.gaps for each in (found, *others)}
        self._deleted = tuple(
            f"the beginning of {each.path.name} is missing: its files before {each.first_segment} were deleted"
            for each in (found, *others)
            if each.first_segment
        )
        for each in (found, *others):
            read = each.rows["closed"] == 0 if only is not None else np.ones(len(each.rows), np.bool_)
            self._note_damage(each.path, each.damage)
            windows = each.windows(each.rows[read | np.isin(each.rows["window"], [*(only or ())])])
            self.windows |= windows
            ledger = each.ledger or sum_ledgers(window.ledger for window in windows.values())
            for name, source in ledger.sources.items():
                if source.missing:
                    self.missing[name] = self.missing.get(name, 0) + sum(source.missing.values())
            for reason, count in ledger.lost(JOURNAL).items():
                self.dropped[reason] = self.dropped.get(reason, 0) + count
        self.recovered = found.recovered
        self.ended = not self.recovered and all(each.ended for each in (found, *others))
        self._facts: Facts | None = None
        self._only: int | None = None

    def __repr__(self) -> str:
        which = "" if self.rank is None else f" {self.rank}"
        return f"<Rank{which} {self.name!r} on {self.host}, pid {self.pid}: {human_count(len(self.windows), 'window')}>"

    @property
    def notes(self) -> tuple[str, ...]:
        """The parts that could not be read, and why; complete once its events were read."""
        return (*self.damage.values(), *self._deleted, *filter(None, [self.missing_steps]))

    def _note_damage(self, path: Path, damage: Damage) -> None:
        self.damage = {other: text for other, text in self.damage.items() if other != path}
        if harm := damage.harm():
            of = "" if self.rank is None else f" of rank {self.rank}"
            self.damage[path] = f"{path.name}{of} is damaged, and not all of its events are read ({harm})"

    @property
    def ending(self) -> str:
        """The end of the process, in words."""
        if self.ended:
            return "ended in order"
        return f"did not end in order, {'and was recovered' if self.recovered else 'or still runs'}"

    def select(self, window: int) -> None:
        """Leaves all windows but this one out from now on; their events are not read."""
        self._only, self._facts = window, None
        self.windows = {number: one for number, one in self.windows.items() if number == window}

    def batches(self, window: int | None = None) -> Iterator[EventBatch]:
        """Batches of events in the order in which they were written.

        Args:
            window: number of the one that is wanted; default: all, or the one that was selected.
        """
        window = self._only if window is None else window
        for path in self.paths:
            with JournalReader(path) as reader:
                for item in reader.items(window):
                    if isinstance(item, EventBatch):
                        yield item
                self._note_damage(path, beyond(reader.damage, self._gaps[path]))

    def watermarks(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """How many events end with each frame, and the begin of the earliest event of the frames from each one on, in ns. Reads the
        heads of the frames only."""
        heads: list[tuple[int, int]] = []

        def note(head: EventsHeader) -> bool:
            heads.append((head.count, head.first_ns if head.count else FOREVER))
            return False

        for path in self.paths:
            with JournalReader(path) as reader:
                for _ in reader.items(self._only, note):
                    pass
        counts, begins = np.array(heads, np.int64).reshape(-1, 2).T
        return np.cumsum(counts), np.append(np.minimum.accumulate(begins[::-1])[::-1], FOREVER)

    def check_frames(self) -> None:
        """Reads all frames for their checksums, and no events of them: 0.3 s for 100 MB."""
        for path in self.paths:
            with closing(FrameReader(path)) as reader:
                while reader.following(_READ_BYTES, lambda _: False) or reader.next() is not None:
                    pass
                self._note_damage(path, beyond(reader.damage, self._gaps[path]))

    def events(self, window: int | None = None) -> Block:
        """All events as one structured array (`EVENT_DTYPE`). Names are ids: see `names`."""
        return join_blocks(batch.events for batch in self.batches(window))

    names = staticmethod(strings.texts)

    @property
    def steps(self) -> Facts:
        """Facts of the steps (`FACTS_DTYPE`); `phases` has a column for each `stepscope.results.Phase`."""
        if self._facts is None:
            builders = facts_builders()
            for batch in self.batches():
                builders[batch.window].update(batch.events)
            self._facts = finished(self, builders)
        return self._facts

    def arrow(self, window: int | None = None) -> Any:
        """The events as a pyarrow table: window, step, ts, dur (ns), kind, category, name, track.

        Raises:
            ImportError: if pyarrow is not installed.
        """
        return _library("pyarrow").table(columns_of_events(self.batches(window)))

    def pandas(self, window: int | None = None) -> Any:
        """The same as a pandas frame.

        Raises:
            ImportError: if pyarrow or pandas is not installed.
        """
        return self.arrow(window).to_pandas()

    def steps_arrow(self) -> Any:
        """The steps as a pyarrow table: window, step, begin_ns, end_ns, duration_ns, ns in each part of a step, as `explain`
        names it, and signals.

        Raises:
            ImportError: if pyarrow is not installed.
        """
        return _library("pyarrow").table(columns_of(self.steps))

    def steps_pandas(self) -> Any:
        """The same as a pandas frame.

        Raises:
            ImportError: if pandas is not installed.
        """
        return _library("pandas").DataFrame(columns_of(self.steps))


class Recording:
    """A run: what its processes recorded.

    Attributes:
        path: what was asked for.
        ranks: by their number; processes without one in the order of their start.
        notes: what could not be used, and why.
        unreadable: of these, the recordings that could not be read.
    """

    def __init__(self, path: Path, ranks: list[Rank], notes: list[str], unreadable: Sequence[str] = ()) -> None:
        self.path = path
        self.ranks = ranks
        self.notes = notes
        self.unreadable = tuple(unreadable)

    def __repr__(self) -> str:
        return f"<Recording {str(self.path)!r}: {human_count(len(self.ranks), 'process', 'es')}>"

    def select(self, window: int) -> None:
        """Leaves all windows but this one out from now on, in every process.

        Raises:
            NoWindowError: if no process has it.
        """
        if not any(window in rank.windows for rank in self.ranks):
            numbers = {number for rank in self.ranks for number in (*rank.windows, *(row.window for row in rank.rows))}
            raise NoWindowError(f"{self.path} has no window {window}; {which_windows(sorted(numbers))}")
        for rank in self.ranks:
            rank.select(window)

    def declare_peak(self, flops: float | None) -> None:
        """Declares how many floating-point operations in a second the device of each process can do at most; `None`: the run's
        metadata say.

        Raises:
            TypeError: if that is no number.
            ValueError: if it is not above 0.
        """
        if flops is None:
            return
        peak = read_peak(flops)
        for rank in self.ranks:
            rank.metadata = {**rank.metadata, PEAK: peak}

    @property
    def damage(self) -> tuple[str, ...]:
        """Sentences on the files that could not be read whole; all of them once the events were read."""
        return tuple(text for rank in self.ranks for text in rank.damage.values())

    def _repr_html_(self) -> str:
        """A table of the processes, which notebooks show. Events are not read for it."""
        from stepscope.analysis.page.render import tables_html
        from stepscope.runtime.display.text_table import Column

        head = [Column(name, right=False) for name in ("Process", "Name", "Host", "End")]
        head += [Column("Windows"), Column("Dropped")]
        rows: list[tuple[str, ...]] = []
        for at, rank in enumerate(self.ranks):
            process = f"ranks[{at}]" + ("" if rank.rank is None else f", rank {rank.rank}")
            ended = "a trace of torch.profiler" if rank.foreign else rank.ending
            counts = f"{len(rank.windows):,}", f"{sum(rank.dropped.values()):,}"
            rows.append((process, rank.name, f"{rank.host}, pid {rank.pid}", ended, *counts))
        return tables_html(tables=[(f"Recording {self.path}", head, rows)], notes=self.notes)


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        install = "pip install 'stepscope[parquet]'" if name == "pyarrow" else "pip install pandas"
        raise ImportError(f"{name} is not installed: {install}", name=name) from error


def load(path: str | os.PathLike[str], only: Collection[int] | None = None, job: str | None = None) -> Recording:
    """Opens what was recorded.

    Args:
        path: a journal, a run's directory, one with several runs of a job below, a collector's directory, or a trace that
            torch.profiler has saved, or a directory of those. Of several runs that were written to one directory, or lie below
            one, the newest is taken.
        only: numbers of the windows that are wanted; default: all. Of a run that was closed in order no others are read.
        job: of a collector's directory, the name of the job that is read; default: the newest. Of a rank that was started again
            the newest run that recorded something is read.

    Raises:
        FileNotFoundError: if there is nothing of that name.
        FormatError: if there is no recording, or no such job.
        TypeError: if the path is neither a str nor a Path.
    """
    from stepscope.analysis.reading.torch_traces import is_trace, trace_of, traces_below

    place = Path(path_argument("path", path))
    if not segments.exists(place):
        raise FileNotFoundError(f"there is no file or directory {str(place)!r}")
    if is_trace(place):
        return Recording(place, [trace_of(place)], [])
    launches = launches_in(place) if place.is_dir() else []
    launches, jobs = _with_job_last(place, launches, job)
    others = [path for launch in launches[:-1] for path in launch.journals]
    several: list[str] = []
    unknown: list[Path] = []
    if others:
        requested, chosen = place, launches[-1]
        if not any(stream_of(path) for path in chosen.journals):
            place = chosen.place
        elif job is None and len(jobs) > 1:
            several = [
                f"{requested} has {len(jobs)} jobs, of which {chosen.job!r} is the newest: --job NAME reads another one"
            ]
        if place != requested:
            unknown = perhaps_newer(requested, launches)
            several = [
                f"{requested} has {len(launches)} runs, of which this is the newest: name another one to read it"
            ]
        elif chosen.place == place:
            several = [f"{path} is of an earlier run: name it to read it" for path in others]
    with tempfile.TemporaryDirectory(prefix="stepscope-load-") as room:
        gathered = gather([place, *unknown], lambda: Path(room))
        found = [one for one in gathered.recordings if one.path not in (*others, *unknown)]
        earlier = _earlier_starts(found)
        found = [one for one in found if one.path not in earlier]
        unreadable = [str(one) for one in gathered.unreadable if Path(one.path) not in others]
        problems = [*unreadable, *gathered.notes]
        if earlier:
            problems.append("ranks were started again: of each rank the newest run that recorded something is read")
        if not found and place.is_dir():
            traces, damaged, notes = traces_below(place)
            if traces:
                return Recording(place, list(traces), [*problems, *damaged, *notes], [*unreadable, *damaged])
            problems += [*damaged, *notes]
        if not found:
            why = f": {problems[0]}" if problems else ""
            raise FormatError(f"there is no recording in {str(place)!r}{why}")
        found.sort(key=lambda one: (one.run.rank if one.run.rank is not None else 1 << 30, one.first_ns))
        processes: dict[str, list[runs.Recording]] = {}
        for one in found:
            processes.setdefault(one.run.id if one.path.parent.name == WINDOWS else str(one.path), []).append(one)
        ranks = [Rank(*one, only=only) for one in processes.values()]
    return Recording(place, ranks, [*several, *_recoverable(found), *problems], unreadable)


def _with_job_last(place: Path, launches: list[Launch], job: str | None) -> tuple[list[Launch], list[str]]:
    """The runs of a directory, the one of a job last, and the names of all jobs of which it has streams."""
    jobs = {launch.job: launch for launch in launches if any(map(stream_of, launch.journals))}
    if job is None:
        return launches, list(jobs)
    if job not in jobs:
        raise FormatError(f"there is no job {job!r} in {str(place)!r}; there is {', '.join(map(repr, jobs)) or 'none'}")
    return [*(launch for launch in launches if launch is not jobs[job]), jobs[job]], list(jobs)


def _earlier_starts(found: list[runs.Recording]) -> list[Path]:
    """Of ranks that were started again: the streams but the newest one that recorded something. Of ranks that a later start of the job
    does not have any more: all."""
    newest: dict[tuple[str, int | None], runs.Recording] = {}
    streams = [one for one in found if one.stream and one.run.rank is not None]
    for one in streams:
        for key in ((one.run.name, one.run.rank), (one.run.name, None)):
            newest[key] = max(newest.get(key, one), one, key=lambda each: (each.events > 0, _wall(each, each.first_ns)))
    earlier: list[Path] = []
    for one in streams:
        rank, last = one.run.rank or 0, newest[one.run.name, None]
        later = last if last.run.world_size is not None and rank >= last.run.world_size else newest[one.run.name, rank]
        if later is not one and (not one.events or _wall(one, one.last_ns) < _wall(later, later.first_ns)):
            earlier.append(one.path)
    return earlier


def _wall(recording: runs.Recording, ns: int) -> int:
    return recording.run.anchor.wall(ns)


def _recoverable(found: list[runs.Recording]) -> list[str]:
    """Says how to read more of runs that were killed."""
    places = {
        one.path.parent.parent if one.path.parent.name == WINDOWS else one.path.parent: one.run.id for one in found
    }
    return [
        f"killed: `stepscope recover {shlex.quote(str(place))}` may bring back more"
        for place, run in places.items()
        if run and can_recover(place, run)
    ]


def facts_builders() -> defaultdict[int, StepFactsBuilder]:
    """By numbers of windows: one for each window of which it is given events."""
    return defaultdict(lambda: StepFactsBuilder(late=True))


def finished(rank: Rank, builders: Mapping[int, StepFactsBuilder]) -> Facts:
    """The facts of windows, in their order. Time before the first step and after the last is set in the rank."""
    made: list[Facts] = []
    lasts: dict[int, Step] = {}
    for number, builder in sorted(builders.items()):
        window = rank.windows.get(number)
        steps = window.steps if window is not None else ()
        if window is not None and len(steps) > 1 and not (rank.ended or window.complete):
            # Of a run that was cut, or goes on, nothing has ended the last step.
            steps = steps[:-1] if steps[-1].end_ns == window.end_ns else steps
        made.append(builder.finish(*(step.end_ns for step in steps[-1:]), window=number))
        if steps:
            lasts[number] = steps[-1]
    facts: Any = np.concatenate(made) if made else StepFactsBuilder().finish()
    facts = _without_cut_steps(rank, facts, lasts)
    rank.startup_ns, rank.shutdown_ns = 0, 0
    if not len(facts):
        return facts  # type: ignore[no-any-return]
    first, last = rank.windows.get(int(facts["window"][0])), rank.windows.get(int(facts["window"][-1]))
    if len(facts) > 1 and startup_step(facts, rank.metadata):
        facts = facts[1:]
    if first is not None and last is not None:
        rank.startup_ns = max(int(facts["begin"][0]) - first.start_ns, 0)
        rank.shutdown_ns = max(last.end_ns - int(facts["end"][-1]), 0)
    return facts  # type: ignore[no-any-return]


def _without_cut_steps(rank: Rank, facts: Any, lasts: Mapping[int, Step]) -> Any:
    """Leaves out steps behind which others are missing, as where a recording is damaged: they would have the time of those.
    `lasts`: the last step of each window."""
    if not len(facts):
        return facts
    before, after = facts[:-1], facts[1:]
    missing = np.append(np.maximum(after["step"] - before["step"] - 1, 0), 0)
    missing[:-1][(after["window"] != before["window"]) | (after["begin"] > before["end"])] = 0
    for window, step in lasts.items():
        (cut,) = np.nonzero((facts["window"] == window) & (facts["end"] == step.end_ns) & (facts["step"] < step.number))
        missing[cut] = step.number - facts["step"][cut]
    if missing.any():
        numbers = set(facts["step"][missing > 0].tolist())
        whole = {
            (step.number, step.end_ns)
            for one in rank.windows.values()
            if WITHOUT_END not in one.diagnostics  # else its steps are made of the same marks
            for step in one.steps
            if step.number in numbers
        }
        for place in np.flatnonzero(missing):
            if (int(facts["step"][place]), int(facts["end"][place])) in whole:  # the program has set `step_num`
                missing[place] = 0
    if missing.any():
        rank.missing_steps = f"{human_count(int(missing.sum()), 'step')} missing, and each step before them left out"
    return facts[missing == 0]
