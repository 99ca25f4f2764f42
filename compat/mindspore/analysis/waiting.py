"""How long the ranks of a job wait for each other in collectives, over all recordings of each rank."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from stepscope.analysis.tables.collectives import CollectiveTable, Key, fastest_of
from stepscope.runtime.display.text_table import human_count

MOST_NAMED = 5
"""Ranks that a sentence names; it counts the others."""


class RankCollectives(msgspec.Struct, frozen=True, kw_only=True):
    """The collectives of one recording of a rank."""

    rank: int
    began_ns: int
    """Unix time; a rank's recordings have the order of these."""
    table: CollectiveTable


class RankComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of the ranks of a job."""

    fastest: list[dict[Key, int]]
    """For each recording: ns of each collective on the rank that was in it for the shortest time."""
    unknown: str = ""
    """Says for which ranks or steps the waiting is not known, and why; empty if it is known, or nothing waits."""


def compare_ranks(recordings: Sequence[RankCollectives], rank_size: int) -> RankComparison:
    """Compares the recordings of a job. Those of the same steps belong together: the first of each rank, the second, and so on.

    Args:
        recordings: any number of each rank.
        rank_size: of the job. Without one of these ranks nothing is known.
    """
    ranks = {each.rank for each in recordings}
    size = max(rank_size, len(ranks))
    nothing: list[dict[Key, int]] = [{} for _ in recordings]
    if size == 1 or not any(each.table.runs for each in recordings):
        return RankComparison(fastest=nothing)
    if len(ranks) < size:
        return RankComparison(fastest=nothing, unknown=_missing(sorted(set(range(size)) - ranks), size))
    turns, uneven = _turns(recordings)
    tables: defaultdict[int, defaultdict[int, CollectiveTable]] = defaultdict(lambda: defaultdict(CollectiveTable))
    for each, turn_of in zip(recordings, turns, strict=True):
        for run in each.table.runs:
            tables[turn_of[run.step]][each.rank].runs.append(run)
    grouped = any(each.table.in_groups for each in recordings)
    fastest: dict[int, dict[Key, int]] = {}
    for turn, of_turn in tables.items():
        known = len(of_turn) == size and not grouped
        found = fastest_of([*of_turn.values()]) if known else {}
        fastest[turn] = {key: ns for key, ns in found.items() if key[0] not in uneven}
    return RankComparison(
        fastest=[
            {
                key: ns
                for turn in set(turn_of.values())
                for key, ns in fastest[turn].items()
                if turn_of.get(key[0]) == turn
            }
            for turn_of in turns
        ],
        unknown=_uneven(uneven),
    )


def _turns(recordings: Sequence[RankCollectives]) -> tuple[list[dict[int, int]], set[int]]:
    """For each recording the steps in it, and how many recordings of its rank have that step before it; and the steps that some
    ranks have in more recordings than others."""
    turns: list[dict[int, int]] = [{} for _ in recordings]
    seen: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for index, each in sorted(enumerate(recordings), key=lambda found: found[1].began_ns):
        steps = {run.step for run in each.table.runs}
        turns[index] = {step: seen[each.rank][step] for step in steps}
        seen[each.rank].update(steps)
    every = {step for counts in seen.values() for step in counts}
    return turns, {step for step in every if len({counts[step] for counts in seen.values()}) > 1}


def _missing(ranks: list[int], size: int) -> str:
    return (
        f"the waiting of ranks is not known: the job has {size}, and no recording of {_named('rank', ranks)} was read"
    )


def _uneven(steps: set[int]) -> str:
    if not steps:
        return ""
    return f"the waiting of ranks is not known in {_named('step', sorted(steps))}: not all ranks recorded collectives in it equally often"


def _named(what: str, numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"{what} {numbers[0]}"
    named = ", ".join(map(str, numbers[:MOST_NAMED]))
    return f"{human_count(len(numbers), what)} ({named}{', ...' if len(numbers) > MOST_NAMED else ''})"
