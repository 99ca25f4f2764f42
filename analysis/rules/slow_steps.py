"""Steps that take several times as long as usual, at equal distances or not, and what differs in them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.analysis.findings import EventReference, Finding, Place
from stepscope.analysis.rules.evidence import (
    Job,
    have_one_of,
    intervals,
    longest,
    number_of,
    on_rank,
    only_in,
    place_of_calls,
    places,
    samples_at,
    steps_with_most,
    waits_in_computing,
)
from stepscope.analysis.tables.rank_summary import Call, RankSummary, durations, hottest, samples_in
from stepscope.analysis.thresholds import (
    COVERED,
    FEWEST_LATE_STEPS,
    FEWEST_PERIODS,
    FEWEST_SAMPLES,
    FINDING,
    MAJORITY,
    MOST_SLOW_STEPS,
    PERIODIC,
    PERIODS_SLOW,
    RUN_QUEUE,
    SLOW_STEP,
    SLOW_STEP_NS,
    SLOW_STEPS_COST,
)
from stepscope.runtime.display.text_table import human_count, human_time
from stepscope.runtime.windows.step_facts import Facts, Phase, covered_before, union
from stepscope.runtime.windows.step_parts import NAMES, is_uncovered, parts_of

MOST_COMPARED = 64
"""Slow steps whose distances are compared, and distances that are tried as a period."""
MOST_SLOW = 8
"""Slow steps that a finding names."""
MOST_NUMBERS = 5
"""Slow steps that are named in a sentence."""
MUCH_WRITTEN = 1 << 20
"""Bytes that a slow step must write to be reported."""


class SlowSteps:
    """The slow steps of the main rank, when they are few and cost much. The time that steps wait for processors is left out.

    Their cause is sought on the rank that has more of its own to do in them, as the main rank may only wait for that one.
    """

    def __init__(self, job: Job, took: NDArray[np.float64], slow: NDArray[np.int64]) -> None:
        rank: RankSummary = job.main
        steps = rank.judged_steps
        self.median = float(np.median(took))
        self.excess_ns = float((took[slow] - self.median).sum())
        self.cost = self.excess_ns / float(took.sum())
        self.cost_ns = self.excess_ns / len(took)
        self.numbers: list[int] = steps["step"][slow].tolist()
        self.period = period_of(slow, took[slow] - self.median, len(took))
        own = [_own_excess(each, self.numbers) if len(each.judged_steps) else 0.0 for each in job.ranks]
        late = [each for each, ns in zip(job.ranks, own, strict=True) if ns > MAJORITY * self.excess_ns]
        self.ranks: tuple[int, ...] = ()
        """The rank for which the others wait in them, if it is one."""
        if len(job.ranks) > 1 and len(late) == 1:
            rank = late[0]
            steps = rank.judged_steps
            slow = _positions(steps, self.numbers)
            took = durations(steps).astype(np.float64)
            self.ranks = number_of(rank)
        more = {name: float((column[slow] - np.median(column)).sum()) for name, column in parts_of(steps).items()}
        if self.ranks:
            more.pop(NAMES[Phase.COMMUNICATION], None)  # the others wait for its own work
        self._cause = max(more, key=lambda name: more[name])
        self._more = more[self._cause]
        self._contended = contended(job)
        usual = np.flatnonzero(took <= SLOW_STEP * self.median)
        here, there = (rank.samples_in_steps(steps[which]) for which in (slow, usual))
        self.place = only_in(here, there)
        if self.ranks and self.place is None:  # what it waits for others hides what it does
            here, there = ([each for each in some if not waits_in_computing(each)] for some in (here, there))
            self.place = only_in(here, there)
        # Of the phase that most of the extra time is in.
        calls = next((calls for phase, calls in rank.calls.items() if NAMES[phase] == self._cause), list[Call]())
        calls = _calls_in(steps["begin"][slow], steps["end"][slow], calls)
        self.calls: tuple[EventReference, ...] = longest(rank, calls)
        self._calling = place_of_calls(calls)
        self.worker_starts = int(have_one_of(steps[slow], rank.worker_starts).sum())
        """Number of them in which a DataLoader starts workers."""
        self.restarts_workers = self._cause == NAMES[Phase.DATA] and self.worker_starts >= max(
            FEWEST_PERIODS, MAJORITY * len(slow)
        )
        written = steps["written_bytes"][slow]
        self._written = float(np.nanmedian(written)) if np.isfinite(written).any() else 0.0

    @property
    def each(self) -> str:
        """The excess of one of these steps."""
        return human_time(self.excess_ns / len(self.numbers))

    @property
    def where(self) -> str:
        """The rank that has the extra time; empty if it is not one of several."""
        return on_rank(self.ranks)

    def places(self) -> tuple[Place, ...]:
        """The place of the program in these steps, or of its call of the function that they wait for."""
        place = self.place or self._calling
        return () if place is None else (place,)

    def cause(self) -> str:
        """The difference of these steps, as a sentence; empty if unknown."""
        share = f"{min(self._more / self.excess_ns, 1):.0%}"
        if self.place is not None:
            return f"{self.place.share:.0%} of their stack samples are in {self.place}, where other steps hardly are"
        where = "" if self._calling is None else f", called in {self._calling}"
        if self._more >= COVERED * self.excess_ns and not is_uncovered(self._cause) and not self._contended:
            return f"{share} of the extra time is {self._cause}{where}"
        return (
            f"the largest part of the extra time, {share}, is {self._cause}{where}" if self.period or self.ranks else ""
        )

    def evidence(self) -> tuple[str, ...]:
        """Which steps they are, what differs, and what they write."""
        named = ", ".join(map(str, self.numbers[:MOST_NUMBERS]))
        more = "..." if len(self.numbers) > MOST_NUMBERS else ""
        written = (f"each of them writes {self._written / 1e6:,.0f} MB",) if self._written > MUCH_WRITTEN else ()
        which = f"step {named} takes" if len(self.numbers) == 1 else f"steps {named}{more}: each takes"
        return (
            f"{which} {self.each} longer than the median of {human_time(self.median)}",
            self.cause(),
            *written,
        )

    def finding(self, kind: str, title: str, action: str, *more: str) -> Finding:
        """The finding of a rule about them.

        Args:
            kind: the rule's id.
            action: what to try; the function where the program is comes before it.
            more: further evidence, which is the cause: the finding names no function.
        """
        places = () if more else self.places()
        return Finding(
            id=kind,
            title=title,
            cost=self.cost,
            cost_ns=self.cost_ns,
            evidence=(*self.evidence(), *more),
            action=f"{places[0].function}: {action}" if places else action,
            gain=f"up to {self.cost:.0%} of the run",
            certainty="certain" if places or more else "likely",
            ranks=self.ranks,
            steps=tuple(self.numbers[:MOST_SLOW]),
            events=self.calls,
            places=places,
        )


def slow_steps_of(job: Job) -> SlowSteps | None:
    """The slow steps, if they are few, cost much, and it is known what differs in them."""
    took, slow = few_slow_steps(job)
    found = SlowSteps(job, took, slow) if len(slow) else None
    return found if found is not None and found.cause() else None


def few_slow_steps(job: Job) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The times of the main rank's steps without what they wait for processors, and the positions of slow ones that are few and cost
    much; none otherwise."""
    took = durations(job.main.judged_steps) - waited_for_processors(job)
    median = float(np.median(took))
    slow = np.flatnonzero((took > SLOW_STEP * median) & (took > median + SLOW_STEP_NS))
    cost = float((took[slow] - median).sum()) / float(took.sum())
    return took, slow if len(slow) <= MOST_SLOW_STEPS * len(took) and cost >= SLOW_STEPS_COST else slow[:0]


def _positions(steps: Facts, numbers: list[int]) -> NDArray[np.int64]:
    """Indexes of the steps with these numbers."""
    found: NDArray[np.int64] = np.flatnonzero(np.isin(steps["step"], numbers))
    return found


def _own_excess(rank: RankSummary, numbers: list[int]) -> float:
    """How many ns longer than usual a rank takes in these steps, without communication."""
    own: NDArray[Any] = durations(rank.judged_steps) - rank.communication()
    return float((own - np.median(own))[_positions(rank.judged_steps, numbers)].sum())


def waited_for_processors(job: Job) -> NDArray[np.float64]:
    """How many ns longer than usual each step waited for a processor, on the main rank or on one that this may have waited for."""
    numbers = job.main.judged_steps["step"].tolist()
    most = np.zeros(len(numbers))
    for steps in (rank.judged_steps for rank in job.ranks if len(rank.judged_steps)):
        waits = np.nan_to_num(steps["run_queue_ns"])
        longer = dict(zip(steps["step"].tolist(), np.maximum(waits - np.median(waits), 0).tolist(), strict=True))
        most = np.maximum(most, [longer.get(number, 0.0) for number in numbers])
    return most


def contended(job: Job) -> bool:
    """Whether the threads that step wait for processors. Other threads may wait then, too, but that is not recorded by step."""
    shares = [
        float(np.nan_to_num(rank.judged_steps["run_queue_ns"]).sum() / durations(rank.judged_steps).sum())
        for rank in job.ranks
        if len(rank.judged_steps)
    ]
    return max(shares, default=0.0) >= RUN_QUEUE / 2


def period_of(slow: NDArray[np.int64], excess: NDArray[np.float64], count: int) -> int:
    """The period of slow steps, or 0: since the first of them most steps at that distance must be slow, and have most of the extra time.

    Args:
        slow: positions of slow steps.
        excess: the extra time of each.
        count: how many steps there are in all.
    """
    latest = np.sort(slow[np.argsort(excess)[-MOST_COMPARED:]])
    distances: Counter[int] = Counter(np.subtract.outer(latest, latest)[np.tril_indices(len(latest), -1)].tolist())
    best, most = 0, 0.0
    for period in sorted(period for period, _ in distances.most_common(MOST_COMPARED) if period >= 2):
        hits = np.bincount(slow % period, minlength=period)
        covered = np.bincount(slow % period, weights=excess, minlength=period) / excess.sum()
        phase = int(covered.argmax())
        first = int(slow[slow % period == phase].min())
        expected = len(range(first, count, period))
        if first >= period and count - first < FEWEST_LATE_STEPS:
            continue  # a few at the end, after normal steps at this distance, may be chance
        if hits[phase] >= max(FEWEST_PERIODS, PERIODS_SLOW * expected) and covered[phase] > most + 0.01:
            best, most = period, float(covered[phase])
    return best if most >= PERIODIC else 0


def _calls_in(begin: NDArray[np.int64], end: NDArray[np.int64], calls: list[Call]) -> list[Call]:
    """Calls that overlap one of these steps, which are in order."""
    spans = np.array(intervals(calls), np.int64).reshape(-1, 2)
    if not len(spans) or not len(begin):
        return []
    at = np.searchsorted(begin, spans[:, 1], side="left") - 1
    inside = (at >= 0) & (spans[:, 0] < end[np.maximum(at, 0)])
    return [call for call, is_inside in zip(calls, inside.tolist(), strict=True) if is_inside]


def check_periodic_stall(job: Job) -> list[Finding]:
    """Finds slow steps at equal distances, and what covers their extra time."""
    slow = slow_steps_of(job)
    if slow is None or not slow.period or slow.restarts_workers:
        return []
    action = "do it less often, or on another thread or process while training goes on"
    title = f"Every {slow.period} steps one takes {slow.each} longer{slow.where}: {slow.cost:.0%} of the time."
    return [slow.finding("periodic-stall", title, action)]


def check_slow_steps(job: Job) -> list[Finding]:
    """Finds steps that take several times the median, if they are few, cost much, and it is known what differs in them."""
    slow = slow_steps_of(job)
    if slow is None or slow.period or slow.restarts_workers:
        return []
    action = "move what these steps do out of the loop, or do it less often"
    title = (
        f"{human_count(len(slow.numbers), 'slow step')} cost {slow.cost:.0%} of the time{slow.where}: {slow.each} each."
    )
    return [slow.finding("slow-steps", title, action)]


def check_workers_restart(job: Job) -> list[Finding]:
    """Finds slow steps in which a DataLoader starts its workers anew, as it does for each pass over the data, and waits for them."""
    slow = slow_steps_of(job)
    if slow is None or not slow.restarts_workers:
        return []
    title = f"A DataLoader starts its workers anew for each pass over the data: {slow.cost:.0%} of the time."
    action = "DataLoader(..., persistent_workers=True), or longer passes"
    evidence = f"in {slow.worker_starts} of these {human_count(len(slow.numbers), 'step')} it starts them (persistent_workers=False)"
    return [slow.finding("workers-restart", title, action, evidence)]


def check_recompiles(job: Job) -> list[Finding]:
    """Finds steps in which torch.compile, or JAX, compiles again, as it does for shapes that it has not seen."""
    return _compilations_of_torch(job.main) or _compilations_of_jax(job.main)


def _compilations_of_torch(rank: RankSummary) -> list[Finding]:
    steps = rank.judged_steps
    calls = _calls_in(steps["begin"], steps["end"], rank.compilations)
    # That of backward may lie in that of forward.
    begin, end = union(*np.array(intervals(calls), np.int64).reshape(-1, 2).T)
    spent = covered_before(begin, end, steps["end"]) - covered_before(begin, end, steps["begin"])
    count = int((spent > 0).sum())
    cost = float(spent.sum()) / float(durations(steps).sum())
    if count < FEWEST_PERIODS or cost < FINDING:
        return []
    place = hottest(samples_in(rank.samples, np.stack((begin, end), axis=1)))
    return [
        Finding(
            id="recompiles",
            title=f"torch.compile compiles again in {count} of {len(steps)} steps: {cost:.0%} of the time.",
            cost=cost,
            cost_ns=float(spent.sum()) / len(steps),
            evidence=(
                f"in such a step it compiles for {human_time(float(np.median(spent[spent > 0])))} at the median",
                *samples_at(place, "taken then"),
            ),
            action="pad inputs to a few shapes, or torch.compile(..., dynamic=True); TORCH_LOGS=recompiles says what has changed",
            gain=f"up to {cost:.0%} of the run",
            certainty="certain",
            steps=steps_with_most(steps, spent),
            events=longest(rank, calls),
            places=places(place),
        )
    ]


JAX_COMPILES = "site-packages/jax/_src/compiler.py"
"""Where JAX waits for what it has compiled."""


def _compilations_of_jax(rank: RankSummary) -> list[Finding]:
    """Finds compilations of JAX by stack samples, as JAX records none."""
    steps, every = rank.judged_steps, rank.samples_in_steps()
    samples = [sample for sample in every if JAX_COMPILES in sample.stack]
    cost = len(samples) / max(len(every), 1)
    compiles = have_one_of(steps, [sample.ts for sample in samples])
    if len(samples) < FEWEST_SAMPLES or cost < FINDING or compiles.sum() < FEWEST_PERIODS:
        return []
    place = hottest(samples)
    return [
        Finding(
            id="recompiles",
            title=f"JAX compiles again in {compiles.sum()} of {len(steps)} steps: {cost:.0%} of the time.",
            cost=cost,
            cost_ns=cost * float(durations(steps).mean()),
            evidence=(f"in {len(samples)} of {len(every)} stack samples it compiles", *samples_at(place, "taken then")),
            action="pad inputs to a few shapes, and call jax.jit once for each function; JAX_EXPLAIN_CACHE_MISSES=1 says what has changed",
            gain=f"up to {cost:.0%} of the run",
            certainty="certain",
            steps=steps_with_most(steps, compiles * durations(steps)),
            places=places(place),
        )
    ]
