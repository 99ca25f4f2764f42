"""Event loops of asyncio: when each task ran, when it was ready and another ran; what blocks a loop, and what piles up."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from stepscope.analysis.findings import EventReference, Finding, Place, TaskTimes
from stepscope.analysis.rules.evidence import MOST_EVENTS, Job, intervals, longest, places, samples_at
from stepscope.analysis.tables.rank_summary import RankSummary, Sample, TaskRun, hottest, parse_frame, samples_in
from stepscope.analysis.thresholds import (
    AT_THE_END,
    BLOCKED_NS,
    BRIEFLY_BLOCKED_NS,
    FEWEST_OPEN_TASKS,
    FEWEST_READINGS,
    FEWEST_SAMPLES,
    LOOP_BLOCKED,
    LOOP_OFTEN_BLOCKED,
    MAJORITY,
    QUEUE_FULL,
    QUEUE_GROWTH,
    TASKS_SLOWER,
)
from stepscope.runtime.display.code_places import in_library
from stepscope.runtime.display.text_table import human_count, human_time
from stepscope.runtime.events import tracks
from stepscope.runtime.windows.step_facts import Times, covered_before, union
from stepscope.runtime.windows.window import Window

READINGS_OF_TASKS = 60
"""How often over a run it is counted how many tasks of a name are open."""
FEWER_COLLECTIONS = "gc.freeze() after the objects that stay are made, such as a catalogue or a model; a larger gc.set_threshold(); or keep fewer objects"
TURN_NS = 200_000
"""The longest time that a loop takes from one task to the next. If no task runs for longer than that, none is ready."""


class Loop:
    """The tasks of one loop, and the stretches in which they ran, between two waits, or in which a long callback ran, in order
    of time."""

    def __init__(
        self, tasks: list[TaskRun], waits: dict[int, list[tuple[int, int]]], callbacks: list[TaskRun] | None = None
    ) -> None:
        self.tasks = tasks
        self.callbacks = callbacks or []
        found = [(each.ts, each.ts + each.dur, each.name) for each in self.callbacks]
        self._waits: list[tuple[int, int, str]] = []
        for task in tasks:
            at, end = task.ts, task.ts + task.dur
            row = waits.get(task.track, [])
            # One wait of a task ends before the next begins.
            for index in range(max(bisect_left(row, (at, 0)) - 1, 0), len(row)):
                first, last = row[index]
                if first >= end:
                    break
                if last <= at:
                    continue
                self._waits.append((max(first, task.ts), min(last, end), task.name))
                if first > at:
                    found.append((at, first, task.name))
                at = max(at, last)
            if at < end:
                found.append((at, end, task.name))
        found.sort()
        self.begin: Times = np.array([each[0] for each in found], np.int64)
        self.end: Times = np.array([each[1] for each in found], np.int64)
        self.names = [each[2] for each in found]

    def recorded_ns(self, windows: Iterable[Window]) -> int:
        """ns from the begin of the first task or callback to the end of the last one, without those between windows; at least 1."""
        found = self.tasks + self.callbacks
        begin = min(task.ts for task in found)
        end = begin + length_of(found)
        ordered = sorted(windows, key=lambda window: window.start_ns)
        gaps = ((max(one.end_ns, begin), min(following.start_ns, end)) for one, following in pairwise(ordered))
        return max(end - begin - sum(max(until - since, 0) for since, until in gaps), 1)

    def ready(self) -> list[tuple[int, int, str]]:
        """When tasks were ready to run, at most, before they ran again: begin, end, and the name of the task.

        A task that is ready runs as soon as no other does. So if it was ready, it became so after the loop last had nothing to do.
        """
        if not len(self.begin):
            return []
        busy, until = union(self.begin, self.end + TURN_NS)
        found: list[tuple[int, int, str]] = []
        for begin, end, name in self._waits:
            at = int(np.searchsorted(busy, end, side="left")) - 1
            if at >= 0 and until[at] >= end:
                found.append((max(begin, int(busy[at])), end, name))
        return found

    def times(self, waits: Mapping[str, Place] | None = None) -> list[TaskTimes]:
        """The times of tasks by their names, those first that ran or were ready longest.

        Args:
            waits: of `waiting_places`.
        """
        count = Counter(task.name for task in self.tasks)
        running, waiting, ready = Counter[str](), Counter[str](), Counter[str]()
        for name, took in zip(self.names, (self.end - self.begin).tolist(), strict=True):
            running[name] += took
        for begin, end, name in self._waits:
            waiting[name] += end - begin
        for begin, end, name in self.ready():
            ready[name] += end - begin
        made = [
            TaskTimes(
                name=name,
                count=n,
                running=running[name],
                ready=ready[name],
                waiting=waiting[name] - ready[name],
                place=(waits or {}).get(name),
            )
            for name, n in count.items()
        ]
        return sorted(made, key=lambda each: -(each.running + each.ready))


def loops_of(rank: RankSummary) -> list[Loop]:
    """The loops of a process, the one with most tasks first."""
    waits: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for ts, dur, track in rank.suspended:
        for at, length, row in zip(ts.tolist(), dur.tolist(), track.tolist(), strict=True):
            waits[row].append((at, at + length))
    for each in waits.values():
        each.sort()
    by_thread: dict[Any, list[TaskRun]] = defaultdict(list)
    for task in rank.tasks:
        row = tracks.get(task.track)
        by_thread[None if row is None else row.parent].append(task)
    callbacks: dict[Any, list[TaskRun]] = defaultdict(list)
    for callback in rank.callbacks:
        callbacks[None if tracks.get(callback.track) is None else callback.track].append(callback)
    found = [Loop(by_thread.get(row, []), waits, callbacks.get(row)) for row in {**by_thread, **callbacks}]
    return sorted(found, key=lambda loop: -len(loop.tasks))


def waiting_places(rank: RankSummary) -> dict[str, Place]:
    """By the names of tasks, the place of the program at which they wait most often, with its share of the readings."""
    seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for text, readings in rank.task_waits.items():
        name, _, place = text.partition(": ")
        seen[name][place] += int(sum(value for _, value in readings))
    found: dict[str, Place] = {}
    for name, counted in seen.items():
        text, most = counted.most_common(1)[0]
        at = parse_frame(text)
        if at is not None and counted.total() >= FEWEST_SAMPLES:
            found[name] = msgspec.structs.replace(at, share=most / counted.total())
    return found


def waits_in(place: Place | None) -> tuple[str, ...]:
    """The sentence that says where tasks wait, where that is known."""
    return () if place is None else (f"{place.share:.0%} of those that wait do so in {place}",)


def length_of(tasks: list[TaskRun]) -> int:
    """ns from the begin of the first of these to the end of the last; 0 if there are none."""
    return max(task.ts + task.dur for task in tasks) - min(task.ts for task in tasks) if tasks else 0


def check_loop_blocked(job: Job) -> list[Finding]:
    """Finds a loop that tasks or callbacks block: they run for long at a stretch, or less long and often."""
    rank = max(job.ranks, key=lambda each: len(each.tasks) + len(each.callbacks))
    found = [blocked(rank, loop) for loop in loops_of(rank)]
    return [finding for finding in found if finding is not None][:1]


class Blocking(msgspec.Struct, frozen=True):
    """Stretches in which tasks or callbacks block a loop."""

    stretches: Times
    """Indexes of the stretches in the loop's `begin` and `end`."""
    ns: float
    """Time for which the stretches block the loop, in ns."""
    who: str
    """The task or callback that blocks the loop most often."""
    how: str
    """A sentence on the blocking, as evidence."""


def blocked(rank: RankSummary, loop: Loop) -> Finding | None:
    """Says which tasks block one loop, where, for how long, and which tasks are ready meanwhile."""
    # A task blocks nobody before there is another one.
    begins = sorted(each.ts for each in loop.tasks + loop.callbacks)
    if len(begins) < 2:
        return None
    found: list[Blocking] = []
    for at_least_ns, share in ((BLOCKED_NS, LOOP_BLOCKED), (BRIEFLY_BLOCKED_NS, LOOP_OFTEN_BLOCKED)):
        took = loop.end - loop.begin
        long = np.flatnonzero((took >= at_least_ns) & (loop.end > begins[1]))
        # A callback may begin a task that runs at once.
        first, last = union(loop.begin[long], loop.end[long])
        blocked_ns = float((last - first).sum())
        if len(long) and blocked_ns >= share * loop.recorded_ns(rank.recorded.windows.values()):
            who, count = Counter(loop.names[at] for at in long.tolist()).most_common(1)[0]
            how = (
                f"{human_count(len(long), 'time')} a task or callback ran for {human_time(at_least_ns)} or longer without an await that "
                f"waits: {human_time(float(np.median(took[long])))} at the median, {human_time(int(took[long].max()))} at most; "
                f"{human_count(count, 'time')} it was {who}"
            )
            found.append(Blocking(long, blocked_ns, who, how))
    if not found:
        waiting = _waiting(rank, loop)
        return None if waiting is None else _finding(rank, loop, waiting)
    # A few long stretches beside many short ones are not the cause.
    return _finding(rank, loop, found[0] if found[0].ns >= MAJORITY * found[-1].ns else found[-1])


def _waiting(rank: RankSummary, loop: Loop) -> Blocking | None:
    """Stretches, however short, of tasks that themselves wait for something while they keep the loop; `None` if that is seldom."""
    first, last = union(loop.begin, loop.end)
    waits = [each for each in samples_in(rank.samples, np.stack((first, last), axis=1), late=0) if _waits(each)]
    if len(waits) < max(FEWEST_SAMPLES, LOOP_OFTEN_BLOCKED * len(rank.samples)):
        return None
    numbers: list[int] = (np.searchsorted(loop.begin, [each.ts for each in waits], side="right") - 1).tolist()
    names = Counter(loop.names[number] for number in numbers)
    who, count = names.most_common(1)[0]
    how = (
        f"in {len(waits)} of {len(rank.samples)} stack samples a task or callback waits for something without an await; "
        f"in {count} of them it is {who}"
    )
    share = len(waits) / len(rank.samples)
    stretches = np.flatnonzero([name in names for name in loop.names])
    return Blocking(stretches, share * loop.recorded_ns(rank.recorded.windows.values()), who, how)


def _waits(sample: Sample) -> bool:
    """Whether the thread waits, and not for the interpreter's lock."""
    return sample.state in {"S", "D"} and not sample.other


def collections_in(rank: RankSummary, begin: Times, end: Times) -> Times:
    """ns of garbage collections in each of some stretches."""
    first, last = union(*np.array(intervals(rank.collections), np.int64).reshape(-1, 2).T)
    return covered_before(first, last, end) - covered_before(first, last, begin)


def _finding(rank: RankSummary, loop: Loop, found: Blocking) -> Finding:
    begin, end = loop.begin[found.stretches], loop.end[found.stretches]
    took, collecting = end - begin, collections_in(rank, begin, end)
    cost = found.ns / loop.recorded_ns(rank.recorded.windows.values())
    numbers: list[int] = found.stretches.tolist()
    stretches = [(int(loop.begin[at]), int(loop.end[at]), loop.names[at]) for at in numbers]
    who, longest = found.who, int(took.max())
    evidence = [found.how]
    share_collected = float(collecting.sum()) / float(took.sum())
    if share_collected >= MAJORITY:
        evidence.append(f"{share_collected:.0%} of that is garbage collection")
    evidence += _ready_meanwhile(loop, begin, end)
    samples = samples_in(rank.samples, np.stack(union(begin, end), axis=1))
    place = hottest(samples)
    by_callback = who in {each.name for each in loop.callbacks}
    if place is None and by_callback:
        place = parse_frame(who)
        place = None if place is None or in_library(place.file) else place
    # The function may be a coroutine, of which only a part can go to a thread.
    function = place.function if place else who
    thread = f"loop.run_in_executor(None, {function})" if by_callback else "await asyncio.to_thread(...)"
    takes = "" if by_callback else f" for what takes long in {function}"
    action = f"{thread}{takes}, or a process pool if it computes in Python; or do it less often"
    if sum(map(_waits, samples)) > MAJORITY * len(samples):
        action = (
            f"{thread}, or a library for asyncio, for what {function} waits for: a socket, a file, a process, a lock; or a thread that takes "
            "it from a queue, as logging.handlers.QueueListener does"
        )
    usual = took < BLOCKED_NS + collecting
    if float(took[usual].sum()) > MAJORITY * float(took.sum()) and share_collected >= MAJORITY:
        action, place = FEWER_COLLECTIONS, None  # the function only made the objects after which Python collects
        certain = True
    else:
        certain = place is not None
        evidence += samples_at(place, "taken then") if place is not None and place.share else ()
    return Finding(
        id="loop-blocked",
        title=f"The event loop is blocked {cost:.0%} of the time, up to {human_time(longest)} at a stretch.",
        cost=cost,
        cost_ns=found.ns,
        evidence=tuple(evidence),
        action=action,
        gain="other tasks no longer wait for it",
        certainty="certain" if certain else "likely",
        events=tuple(
            EventReference(name, first, last - first, rank.rank)
            for first, last, name in sorted(stretches, key=lambda each: each[0] - each[1])[:MOST_EVENTS]
        ),
        places=places(place),
    )


def _ready_meanwhile(loop: Loop, begin: Times, end: Times) -> list[str]:
    """The sentence on tasks that were ready in some stretches, if there were any."""
    ready = loop.ready()
    edges = np.array([(first, last) for first, last, _ in ready], np.int64).reshape(-1, 2)
    first, last = union(begin, end)
    within = covered_before(first, last, edges[:, 1]) - covered_before(first, last, edges[:, 0])
    waited: Counter[str] = Counter()
    for (_, _, name), ns in zip(ready, within.tolist(), strict=True):
        waited[name] += ns
    names = [f"{name} {human_time(ns)}" for name, ns in waited.most_common(3) if ns]
    if not names:
        return []
    delays = edges[:, 1] - edges[:, 0]
    return [
        f"other tasks may have waited for their turn, up to {human_time(int(delays.max()))} "
        f"(p95 {human_time(float(np.quantile(delays, 0.95)))}); in sum at most: {', '.join(names)}"
    ]


def check_tasks_never_end(job: Job) -> list[Finding]:
    """Finds tasks of one name that are open at the end, though they began evenly over the run."""
    rank = max(job.ranks, key=lambda each: len(each.tasks))
    if len(rank.tasks) < FEWEST_OPEN_TASKS:
        return []
    end = max(task.ts + task.dur for task in rank.tasks)
    # asyncio.run cancels at its end what is still there.
    late = end - AT_THE_END * length_of(rank.tasks)
    open_tasks = [task for task in rank.tasks if task.open or task.ts + task.dur > late]
    opened = Counter(task.name for task in open_tasks)
    all_of = Counter(task.name for task in rank.tasks)
    found: list[Finding] = []
    for name, count in opened.items():
        if count < FEWEST_OPEN_TASKS or count < MAJORITY * all_of[name]:
            continue
        starts = np.array([task.ts for task in open_tasks if task.name == name])
        spread = (starts.max() - starts.min()) / max(end - starts.min(), 1)
        if spread < MAJORITY:  # began together: a pool
            continue
        found.append(
            Finding(
                id="tasks-never-end",
                title=f"Tasks never end: {count:,} tasks named {name} were open at the end of the run.",
                evidence=(
                    f"{count:,} of {all_of[name]:,} tasks of that name did not end; they began all through the run",
                    *waits_in(place := waiting_places(rank).get(name)),
                ),
                action="find out what they wait for; give it a timeout (asyncio.timeout), or cancel tasks that nobody needs any more",
                gain="memory no longer grows with every request",
                certainty="certain",
                events=longest(rank, [task for task in open_tasks if task.name == name]),
                places=places(place),
            )
        )
    return found[:1]


def check_tasks_pile_up(job: Job) -> list[Finding]:
    """Finds tasks of one name of which more and more are open, as they take longer and longer: they wait for one another."""
    rank = max(job.ranks, key=lambda each: len(each.tasks))
    by_name: dict[str, list[TaskRun]] = defaultdict(list)
    for task in rank.tasks:
        by_name[task.name].append(task)
    for name, tasks in by_name.items():
        if len(tasks) < 3 * FEWEST_OPEN_TASKS:
            continue
        begin = np.sort([task.ts for task in tasks])
        end = np.sort([task.ts + task.dur for task in tasks])
        if begin[-1] - begin[0] < MAJORITY * (end[-1] - begin[0]):
            continue  # began together, as with a semaphore that lets some run at a time
        at = begin[:: max(len(begin) // READINGS_OF_TASKS, 1)]
        open_tasks = np.searchsorted(begin, at, side="right") - np.searchsorted(end, at, side="right")
        first, second, third = (float(np.median(part)) for part in np.array_split(open_tasks, 3))
        took = [task.dur for task in sorted(tasks, key=lambda task: task.ts)]
        early, middle, late = (float(np.median(part)) for part in np.array_split(took, 3))
        if not first < second < third or third - first < FEWEST_OPEN_TASKS or late < TASKS_SLOWER * early:
            continue
        times = next(each for loop in loops_of(rank) for each in loop.times() if each.name == name)
        return [
            Finding(
                id="tasks-pile-up",
                title=f"Tasks pile up: {open_tasks[-1]:,} tasks named {name} are open at once in the end.",
                evidence=(
                    f"there were {first:,.0f} at once in the first third of the run, {second:,.0f} in the second and {third:,.0f} in the last; "
                    f"one took {human_time(early)}, {human_time(middle)} and {human_time(late)} at the median",
                    f"in sum they ran for {human_time(times.running)} and waited {human_time(times.ready + times.waiting)}",
                    *waits_in(place := waiting_places(rank).get(name)),
                ),
                action="find out what they wait for: a lock that is held during an await, a semaphore or a pool of connections or threads that is too "
                "small, a slow server; or accept fewer at once",
                gain="requests no longer take longer and longer",
                certainty="certain",
                events=longest(rank, tasks),
                places=places(place),
            )
        ]
    return []


def check_queue_grows(job: Job) -> list[Finding]:
    """Finds a queue whose length rises all through the run."""
    for rank in job.ranks:
        for name, readings in rank.queues.items():
            values = np.array([value for _, value in readings])
            if len(values) < FEWEST_READINGS:
                continue
            first, second, third = (float(np.median(part)) for part in np.array_split(values, 3))
            if not first < second < third or third - first < QUEUE_GROWTH or values[-1] < QUEUE_FULL * values.max():
                continue
            half = MAJORITY * length_of(rank.tasks)
            lasting = Counter(task.name for task in rank.tasks if task.open or task.dur > half)
            tasks = ", ".join(f"{task} ({count})" for task, count in lasting.most_common(4))
            place = parse_frame(name)
            seconds = (readings[-1][0] - readings[0][0]) / 1e9
            return [
                Finding(
                    id="queue-grows",
                    title=f"A queue grows: the one made in {place.function if place else name} holds {values[-1]:,.0f} items at the end.",
                    evidence=(
                        f"it held {first:,.0f} items in the first third of the run, {second:,.0f} in the second and {third:,.0f} "
                        f"in the last: {(values[-1] - values[0]) / seconds:,.0f} more each second",
                        *(
                            (f"tasks that lasted most of the run, some of which take from it: {tasks}",)
                            if tasks
                            else ()
                        ),
                    ),
                    action="more or quicker consumers, or asyncio.Queue(maxsize=...), so that producers wait",
                    gain="answers no longer get later and later, and memory no longer grows",
                    certainty="certain",
                    places=places(place),
                )
            ]
    return []
