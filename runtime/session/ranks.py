"""Sets of ranks as people write them: `0,3-5`."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.settings.arguments import shown

MAX_RANKS = 1 << 20
"""Limit of ranks in a job and in one text. Larger numbers come from damaged or hostile input."""
MAX_SHOWN_RANGES = 64
"""Limit of ranges in one text."""

_SHOWN = 80
"""Characters of a value in a message."""
_MAX_WARNINGS = 64
"""Limit of different warnings, as a hostile peer can cause any number."""

log = logging.getLogger("stepscope")
_warned: set[str] = set()

_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def ranks_from(value: str | Sequence[int] | None) -> tuple[int, ...] | None:
    """Parses ranks. Returns them sorted, each once; `None` for all.

    Args:
        value: numbers and ranges with commas between, `all` for all, or the numbers themselves.

    Raises:
        ValueError: naming the part that is wrong, or if the text names more than `MAX_RANKS` ranks.
    """
    if value is None or (isinstance(value, str) and value.strip() == "all"):
        return None
    if not isinstance(value, str):
        return tuple(sorted(set(value)))
    shown = repr(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}...")
    ranges: list[range] = []
    named = 0
    for part in value.split(","):
        part = part.strip()
        found = _PART.fullmatch(part)
        if found is None:
            raise ValueError(
                f"ranks is {shown}: {part[:_SHOWN]!r} is no rank and no range of ranks; write 0,3-5 or all"
            )
        first = int(found[1])
        last = int(found[2]) if found[2] else first
        if last < first:
            raise ValueError(f"ranks is {shown}: the range {part!r} runs backwards; write {last}-{first}")
        named += last - first + 1
        if named > MAX_RANKS:  # counted before any set is built: a short text can name millions
            raise ValueError(
                f"ranks is {shown}: up to {part!r} it names {named:,} ranks, the limit is {MAX_RANKS:,}; "
                "write all for every rank"
            )
        ranges.append(range(first, last + 1))
    return tuple(sorted(set[int]().union(*ranges)))


def ranks_text(ranks: Sequence[int] | None) -> str:
    """Returns the shortest text for ranks, which `ranks_from` parses."""
    if ranks is None:
        return "all"
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return _joined(range(first, last + 1) for first, last in runs)


def valid_rank(rank: int | str | None, source: str) -> int | None:
    """Returns the rank; `None`, and logs a warning with its source, if it is no number from 0 to below `MAX_RANKS`."""
    if rank is None or (isinstance(rank, int) and 0 <= rank < MAX_RANKS):
        return rank
    _warn_once(
        f"{source}: the rank {shown(rank)} is ignored, ranks are whole numbers from 0 to {MAX_RANKS - 1}: the process counts as "
        "one without a rank"
    )
    return None


def valid_world_size(size: int | str | None, source: str) -> int | None:
    """Returns the number of ranks; `None`, and logs a warning with its source, if it is no number from 1 to `MAX_RANKS`."""
    if size is None or (isinstance(size, int) and 1 <= size <= MAX_RANKS):
        return size
    _warn_once(
        f"{source}: the world size {shown(size)} is ignored, sizes are whole numbers from 1 to {MAX_RANKS}: it counts as unknown, so "
        "missing ranks are not noticed"
    )
    return None


def usual_size(sizes: Iterable[int | None]) -> int:
    """Returns the number of ranks that most processes of a job claim, of equally frequent ones the largest; 0 if none claims any."""
    counts = Counter(size for size in sizes if size)
    return max(counts, key=lambda size: (counts[size], size), default=0)


def _warn_once(text: str) -> None:
    if text not in _warned and len(_warned) < _MAX_WARNINGS:
        _warned.add(text)
        log.warning(text)


def missing_ranges(ranks: Iterable[int], size: int) -> list[range]:
    """Returns the numbers below `size` that are not among these ranks, as ranges, so that a large size costs nothing."""
    missing: list[range] = []
    start = 0
    for rank in sorted({rank for rank in ranks if 0 <= rank < size}):
        if rank > start:
            missing.append(range(start, rank))
        start = rank + 1
    return [*missing, range(start, size)] if start < size else missing


def ranges_text(ranges: Sequence[range]) -> str:
    """Returns ranges of ranks as text; only the first `MAX_SHOWN_RANGES` of many."""
    more = len(ranges) - MAX_SHOWN_RANGES
    return _joined(ranges[:MAX_SHOWN_RANGES]) + (f" and {human_count(more, 'more range')}" if more > 0 else "")


def _joined(ranges: Iterable[range]) -> str:
    return ",".join(str(each[0]) if len(each) == 1 else f"{each[0]}-{each[-1]}" for each in ranges)
