"""Computes how long the ranks of a job wait for each other in collectives, over all recordings of each rank."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from stepscope.analysis.tables.collectives import CollectiveTable, Key, fastest_of
from stepscope.runtime.display.text_table import human_count

MOST_NAMED = 5
"""Ranks that a sentence names; it counts the others."""


class RankCollectives(NamedTuple):
    """The collectives of one recording of a rank."""

    rank: int
    began_ns: int
    """Unix time at which it began; a rank's recordings are sorted by it."""
    table: CollectiveTable


def fastest_runs(recordings: Sequence[RankCollectives], rank_size: int) -> tuple[list[dict[Key, int]], str]:
    """Compares the recordings of a job. Those of the same steps belong together: the first of each rank, the second, and so on.

    Args:
        recordings: any number of each rank.
        rank_size: of the job. Without one of these ranks nothing is known.

    Returns:
        For each recording the ns of each collective on the rank that was in it for the shortest time. And a sentence that says for which
        ranks or steps that is not known, and why; empty if it is known, or nothing waits.
    """
    ranks = {each.rank for each in recordings}
    size = max(rank_size, len(ranks))
    found: list[dict[Key, int]] = [{} for _ in recordings]
    if size == 1 or not any(each.table.runs for each in recordings):
        return found, ""
    if len(ranks) < size:
        missing = _named("rank", sorted(set(range(size)) - ranks))
        return found, f"the waiting of ranks is not known: the job has {size}, and no recording of {missing} was read"
    whole: defaultdict[int, CollectiveTable] = defaultdict(CollectiveTable)
    """All collectives of each rank."""
    earlier: dict[int, Counter[tuple[int, str]]] = {}
    """By recording: how often its rank had run each collective in each step before."""
    for index, (rank, _, table) in sorted(enumerate(recordings), key=lambda item: item[1].began_ns):
        earlier[index] = Counter((run.step, run.name) for run in whole[rank].runs)
        whole[rank].runs += table.runs
        whole[rank].in_groups |= table.in_groups
    fastest = fastest_of([*whole.values()])
    for index, each in enumerate(recordings):
        for step, name, place in each.table.keyed():
            key = step, name, place + earlier[index][step, name]
            if key in fastest:
                found[index][step, name, place] = fastest[key]
    unknown = {run.step for table in whole.values() for run in table.runs} - {step for step, _, _ in fastest}
    if not unknown or any(table.in_groups for table in whole.values()):
        return found, ""
    steps = _named("step", sorted(unknown))
    return (
        found,
        f"the waiting of ranks is not known in {steps}: not all ranks recorded collectives in it equally often",
    )


def _named(what: str, numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"{what} {numbers[0]}"
    named = ", ".join(map(str, numbers[:MOST_NAMED]))
    return f"{human_count(len(numbers), what)} ({named}{', ...' if len(numbers) > MOST_NAMED else ''})"
