"""How many processors a job would use, by the counters of the kernel's scheduler."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.analysis.measures.job import Job
from stepscope.analysis.tables.rank_summary import RankSummary
from stepscope.analysis.thresholds import BUSY_THREAD
from stepscope.runtime.observers import processor_demand

MOST_PERCENT = 105.0
"""More is not explained by rounding: a control group limits the rank to fewer processors than those that were measured."""


def demand(job: Job) -> tuple[float, float, float]:
    """How many processors the ranks on the main rank's host would use, how many their child processes, and how many there are;
    0 if that is not known."""
    here = _on_main_host(job)
    own, children = (
        sum(_sum(rank, *names) for rank in here) for names in (processor_demand.THIS_PROCESS, processor_demand.CHILDREN)
    )
    return own, children, max((rank.demand[processor_demand.PROCESSORS][-1][1] for rank in here), default=0.0)


def children_run(job: Job) -> float:
    """Part of their time, without what they wait for others, in which child processes have the processors that they ask for."""
    run, waits = (sum(_sum(rank, name) for rank in _on_main_host(job)) for name in processor_demand.CHILDREN)
    return run / (run + waits) if run + waits else 1.0


def others_use(job: Job) -> float:
    """How many processors other programs use on that host."""
    here = _on_main_host(job)
    if not here:
        return 0.0
    own = sum(_sum(rank, processor_demand.THIS_PROCESS[0], processor_demand.CHILDREN[0]) for rank in here)
    return growth_per_ns(here[0].demand[processor_demand.IN_USE]) - own


def machine_use(rank: RankSummary) -> float | None:
    """Percent of the time for which processors were busy, from the first judged step on if there was a reading then; `None` if that is
    not known.

    Of the processors that the rank's control group may use, with the group's work; else of the machine's, with any process; else of those
    that the rank may use, with any process, where no control group limits it to fewer.
    """
    begin = int(rank.judged_steps["begin"][0]) if len(rank.judged_steps) else 0
    return use_by_counters(rank.counter_means, rank.demand, begin)


def use_by_counters(
    means: Mapping[str, float], demand: Mapping[str, list[tuple[int, float]]], begin: int
) -> float | None:
    """The same of counters.

    Args:
        means: of the counters of `HostBackend`, by name.
        demand: readings of those of `processor_demand`, by name.
        begin: when the first judged step began, in ns.
    """
    sampled = means.get("cgroup cpu %", means.get("host cpu %"))
    processors, in_use = (demand.get(name, []) for name in (processor_demand.PROCESSORS, processor_demand.IN_USE))
    since = [reading for reading in in_use if reading[0] >= begin]
    in_use = since if len(since) > 1 else in_use
    if sampled is None and len(in_use) > 1 and processors and processors[-1][1] > 0:
        share = 100 * growth_per_ns(in_use) / processors[-1][1]
        return share if share <= MOST_PERCENT else None
    return sampled


def _on_main_host(job: Job) -> list[RankSummary]:
    return [
        rank
        for rank in job.ranks
        if rank.recorded.host == job.main.recorded.host and len(rank.demand.get(processor_demand.IN_USE, ())) > 1
    ]


def _sum(rank: RankSummary, *names: str) -> float:
    return sum(growth_per_ns(rank.demand[name]) for name in names if name in rank.demand)


def growth_per_ns(readings: list[tuple[int, float]]) -> float:
    """By how much a counter grows in a ns, from its first to its last reading."""
    (first, before), (last, after) = readings[0], readings[-1]
    return (after - before) / (last - first) if last > first else 0.0


def busy_threads(series: dict[str, list[tuple[int, float]]]) -> list[tuple[str, float]]:
    """Names of threads with the share of a processor that each uses, the busiest first."""
    found = [(name, growth_per_ns(readings)) for name, readings in series.items()]
    return sorted((one for one in found if one[1] > BUSY_THREAD), key=lambda one: -one[1])
