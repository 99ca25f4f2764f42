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
    """Stretches in which one task or callback runs for longer than a loop may be held up."""
    rank = max(job.ranks, key=lambda each: len(each.tasks) + len(each.callbacks))
    found = [blocked(rank, loop) for loop in loops_of(rank)]
    return [finding for finding in found if finding is not None][:1]


def blocked(rank: RankSummary, loop: Loop) -> Finding | None:
    """Of one loop: who blocks it, where, for how long, and who is ready meanwhile."""
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
        f"{len(long)} times a task or callback ran for {human_time(BLOCKED_NS)} or more without giving way, {human_time(float(np.median(took[long])))} as a rule, "
        f"{human_time(longest)} at most; {count} of them in {who}",
    ]
    names = [f"{name} {human_time(ns)}" for name, ns in waited.most_common(3) if ns]
    if names:
        evidence.append(f"tasks that were ready to run meanwhile, at most and in sum: {', '.join(names)}")
    if names:
        delays = [last - first for first, last, _ in ready]
        evidence.append(
            f"a task that was ready waited for its turn for {human_time(max(delays))} at most, and for {human_time(float(np.quantile(delays, 0.95)))} or less "
            "in 95 of 100 times"
        )
    if place is not None and place.share:
        evidence.append(f"{place.share:.0%} of the samples there are in {place}")
    function = place.function if place else "..."
    thread = f"loop.run_in_executor(None, {function})" if by_callback else f"await asyncio.to_thread({function})"
    return Finding(
        id="loop-blocked",
        title=f"The event loop is blocked {cost:.0%} of the time, {human_time(longest)} at a stretch.",
        cost=cost,
        cost_ns=blocked_ns,
        evidence=tuple(evidence),
        action=f"{thread}, or a process pool if it is Python that computes",
        gain="requests that wait meanwhile are answered at once",
        certainty="certain" if place is not None else "likely",
        places=() if place is None else (place,),
    )


def check_endless_tasks(job: Job) -> list[Finding]:
    """Tasks of one name that are open at the end, of those that began evenly over the run."""
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
                title=f"Tasks never end: {count:,} of {name} were still there at the end.",
                cost=0.5,
                cost_ns=0.0,
                evidence=(f"{count:,} of {all_of[name]:,} tasks of that name, begun all through the run, did not end",),
                action="see what they wait for; give it a timeout (asyncio.timeout), or cancel them when nobody needs them any more",
                gain="memory and wake-ups that grow with every request",
                certainty="certain",
            )
        )
    return found[:1]


def check_growing_queues(job: Job) -> list[Finding]:
    """A queue whose length rises all through the run."""
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
                    title=f"A queue grows: what is made in {place.function if place else name} has {values[-1]:,.0f} items at the end.",
                    cost=0.5,
                    cost_ns=0.0,
                    evidence=(
                        f"its length rose in every third of the run: {first:,.0f}, {second:,.0f}, {third:,.0f}; "
                        f"{(values[-1] - values[0]) / seconds:,.0f} more each second",
                        f"tasks that were there most of the time, of which some take from it: {tasks}",
                    ),
                    action="more consumers, quicker ones, or asyncio.Queue(maxsize=...) so that producers wait",
                    gain="answers that do not get later and later, memory that does not grow",
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
