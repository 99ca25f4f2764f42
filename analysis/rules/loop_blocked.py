"""Event loops that a task or callback blocks."""

from __future__ import annotations

from collections import Counter

import numpy as np

from stepscope.analysis.findings import EventReference, Finding
from stepscope.analysis.measures.event_loop import Loop, loops_of
from stepscope.analysis.measures.evidence import MOST_EVENTS, places, samples_at
from stepscope.analysis.measures.job import Job
from stepscope.analysis.tables.rank_summary import RankSummary, hottest, parse_frame, samples_in
from stepscope.analysis.thresholds import BLOCKED_NS, BRIEFLY_BLOCKED_NS, LOOP_BLOCKED, LOOP_OFTEN_BLOCKED
from stepscope.runtime.display.code_places import in_library
from stepscope.runtime.display.text_table import human_time
from stepscope.runtime.windows.step_facts import Times, union


def check(job: Job) -> list[Finding]:
    """Finds a loop that tasks or callbacks block: they run for long at a stretch, or less long and often."""
    rank = max(job.ranks, key=lambda each: len(each.tasks) + len(each.callbacks))
    found = [blocked(rank, loop) for loop in loops_of(rank)]
    return [finding for finding in found if finding is not None][:1]


def blocked(rank: RankSummary, loop: Loop) -> Finding | None:
    """Says which tasks block one loop, where, for how long, and which tasks are ready meanwhile."""
    for at_least_ns, share in ((BLOCKED_NS, LOOP_BLOCKED), (BRIEFLY_BLOCKED_NS, LOOP_OFTEN_BLOCKED)):
        long = np.flatnonzero(loop.end - loop.begin >= at_least_ns)
        # A callback may begin a task that runs at once.
        first, last = union(loop.begin[long], loop.end[long])
        blocked_ns = float((last - first).sum())
        if blocked_ns >= share * max(loop.length, 1):
            return _finding(rank, loop, long, at_least_ns, blocked_ns)
    return None


def _finding(rank: RankSummary, loop: Loop, long: Times, at_least_ns: int, blocked_ns: float) -> Finding:
    """Args: numbers of the stretches that block the loop; how long each of them is at least, and all together."""
    begin, end = loop.begin, loop.end
    took = end - begin
    cost = blocked_ns / max(loop.length, 1)
    numbers: list[int] = long.tolist()
    who, count = Counter(loop.names[at] for at in numbers).most_common(1)[0]
    stretches = [(int(begin[at]), int(end[at]), loop.names[at]) for at in numbers]
    place = hottest(samples_in(rank.samples, [(first, last) for first, last, _ in stretches]))
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
        f"{len(long)} times a task or callback ran for {human_time(at_least_ns)} or longer without an await that waits: "
        f"{human_time(float(np.median(took[long])))} at the median, {human_time(longest)} at most; {count} times it was {who}",
    ]
    names = [f"{name} {human_time(ns)}" for name, ns in waited.most_common(3) if ns]
    if names:
        delays = [last - first for first, last, _ in ready]
        evidence.append(f"other tasks may have been ready meanwhile, in sum and at most: {', '.join(names)}")
        evidence.append(
            f"tasks that may have been ready waited up to {human_time(max(delays))} for their turn "
            f"(p95 {human_time(float(np.quantile(delays, 0.95)))})"
        )
    if place is not None and place.share:
        evidence += samples_at(place, "taken then")
    # Of a task's own coroutine only a part can go to a thread.
    function = place.function if place and place.function.rpartition(".")[2] != who else "..."
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
        events=tuple(
            EventReference(name, first, last - first, rank.rank)
            for first, last, name in sorted(stretches, key=lambda each: each[0] - each[1])[:MOST_EVENTS]
        ),
        places=places(place),
    )
