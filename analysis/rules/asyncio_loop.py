"""Event loops of asyncio."""

from __future__ import annotations

from collections import Counter

import numpy as np

from stepscope.analysis.event_loop import Loop, loops_of
from stepscope.analysis.findings import Finding
from stepscope.analysis.job import Job, Rule
from stepscope.analysis.rank_summary import RankSummary, hottest, in_library, parse_frame, samples_in
from stepscope.analysis.thresholds import (
    AT_THE_END,
    BLOCKED_NS,
    FEWEST_READINGS,
    LOOP_BLOCKED,
    NEVER_ENDING,
    QUEUE_GROWTH,
)
from stepscope.runtime.step_facts import union
from stepscope.runtime.table import human_time


def check_blocked_loops(job: Job) -> list[Finding]:
    """Finds a loop that tasks or callbacks block: they run for longer than `BLOCKED_NS` at a stretch."""
    rank = max(job.ranks, key=lambda each: len(each.tasks) + len(each.callbacks))
    found = [blocked(rank, loop) for loop in loops_of(rank)]
    return [finding for finding in found if finding is not None][:1]


def blocked(rank: RankSummary, loop: Loop) -> Finding | None:
    """Says which tasks block one loop, where, for how long, and which tasks are ready meanwhile."""
    begin, end = loop.begin, loop.end
    took = end - begin
    long = np.flatnonzero(took >= BLOCKED_NS)
    if not len(long):
        return None
    first_of, last_of = union(begin[long], end[long])  # a callback may begin a task that runs at once
    blocked_ns = float((last_of - first_of).sum())
    cost = blocked_ns / max(loop.length, 1)
    if cost < LOOP_BLOCKED:
        return None
    who, count = Counter(loop.names[at] for at in long.tolist()).most_common(1)[0]
    place = hottest(samples_in(rank.samples, list(zip(begin[long].tolist(), end[long].tolist(), strict=True))))
    by_callback = who in {each.name for each in loop.callbacks}
    if place is None and by_callback:
        place = parse_frame(who)
        place = None if place is None or in_library(place.file) else place
    longest = int(took[long].max())
    waited: Counter[str] = Counter()
    ready = loop.ready()
    for first, last, name in ready:
        inside = np.minimum(end[long], last) - np.maximum(begin[long], first)
        waited[name] += int(np.maximum(inside, 0).sum())
    evidence = [
        f"{len(long)} times a task or callback ran for {human_time(BLOCKED_NS)} or longer without an await that waits: "
        f"{human_time(float(np.median(took[long])))} at the median, {human_time(longest)} at most; {count} times it was {who}",
    ]
    names = [f"{name} {human_time(ns)}" for name, ns in waited.most_common(3) if ns]
    if names:
        delays = [last - first for first, last, _ in ready]
        evidence.append(f"other tasks were ready meanwhile and had to wait, in sum and at most: {', '.join(names)}")
        evidence.append(
            f"a task that was ready waited for its turn for {human_time(max(delays))} at most, and for "
            f"{human_time(float(np.quantile(delays, 0.95)))} or less in 95 of 100 times"
        )
    if place is not None and place.share:
        evidence.append(f"{place.share:.0%} of the stack samples taken then are in {place}")
    function = place.function if place else "..."
    thread = f"loop.run_in_executor(None, {function})" if by_callback else f"await asyncio.to_thread({function})"
    return Finding(
        id="loop-blocked",
        title=f"The event loop is blocked {cost:.0%} of the time, up to {human_time(longest)} at a stretch.",
        cost=cost,
        cost_ns=blocked_ns,
        evidence=tuple(evidence),
        action=f"{thread}, or a process pool if it computes in Python",
        gain="other tasks no longer wait for it",
        certainty="certain" if place is not None else "likely",
        places=() if place is None else (place,),
    )


def check_endless_tasks(job: Job) -> list[Finding]:
    """Finds tasks of one name that are open at the end, though they began evenly over the run."""
    rank = max(job.ranks, key=lambda each: len(each.tasks))
    if len(rank.tasks) < NEVER_ENDING:
        return []
    end = max(task.ts + task.dur for task in rank.tasks)
    # asyncio.run cancels at its end what is still there.
    late = end - AT_THE_END * _length(rank)
    left = [task for task in rank.tasks if task.open or task.ts + task.dur > late]
    opened = Counter(task.name for task in left)
    all_of = Counter(task.name for task in rank.tasks)
    found: list[Finding] = []
    for name, count in opened.items():
        if count < NEVER_ENDING or count < 0.5 * all_of[name]:
            continue
        starts = np.array([task.ts for task in left if task.name == name])
        spread = (starts.max() - starts.min()) / max(end - starts.min(), 1)
        if spread < 0.5:  # began together: a pool
            continue
        found.append(
            Finding(
                id="tasks-never-end",
                title=f"Tasks never end: {count:,} tasks named {name} were open at the end of the run.",
                evidence=(
                    f"{count:,} of {all_of[name]:,} tasks of that name did not end; they began all through the run",
                ),
                action="find out what they wait for; give it a timeout (asyncio.timeout), or cancel tasks that nobody needs any more",
                gain="memory no longer grows with every request",
                certainty="certain",
            )
        )
    return found[:1]


def check_growing_queues(job: Job) -> list[Finding]:
    """Finds a queue whose length rises all through the run."""
    for rank in job.ranks:
        for name, readings in rank.queues.items():
            values = np.array([value for _, value in readings])
            if len(values) < FEWEST_READINGS:
                continue
            first, second, third = (float(np.median(part)) for part in np.array_split(values, 3))
            if not first < second < third or third - first < QUEUE_GROWTH or values[-1] < 0.8 * values.max():
                continue
            half = 0.5 * _length(rank)
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
                    places=() if place is None else (place,),
                )
            ]
    return []


def _length(rank: RankSummary) -> int:
    return max(task.ts + task.dur for task in rank.tasks) - min(task.ts for task in rank.tasks) if rank.tasks else 0


RULES = (
    Rule(
        id="loop-blocked",
        needs="tasks and long callbacks of asyncio (`stepscope run`); stack samples say where",
        finds="a function that runs on the event loop for long",
        wrong_if="others are answered as late with that function on a thread",
        check=check_blocked_loops,
        of_steps=False,
    ),
    Rule(
        id="tasks-never-end",
        needs="tasks of asyncio",
        finds="tasks that are begun all through the run and do not end",
        wrong_if="their number is level in a run that is ten times as long",
        check=check_endless_tasks,
        of_steps=False,
    ),
    Rule(
        id="queue-grows",
        needs="lengths of queues of asyncio (`stepscope run`)",
        finds="producers that are quicker than consumers",
        wrong_if="it is level in a longer run",
        check=check_growing_queues,
        of_steps=False,
    ),
)
