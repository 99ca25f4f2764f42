"""Sets of ranks as people write them: `0,3-5`."""

from __future__ import annotations

import re
from collections.abc import Sequence

MOST = 1 << 20
"""Ranks that a text may name."""

_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def ranks_from(said: str | Sequence[int] | None) -> tuple[int, ...] | None:
    """The ranks, sorted and each once; `None` for all.

    Args:
        said: numbers and ranges with commas between, `all` for all, or the numbers themselves.

    Raises:
        ValueError: naming the part that is wrong.
    """
    if said is None or (isinstance(said, str) and said.strip() == "all"):
        return None
    if not isinstance(said, str):
        return tuple(sorted(set(said)))
    ranks: set[int] = set()
    for part in said.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None:
            raise ValueError(
                f"ranks is {said!r}: {part.strip()!r} is no rank and no range of ranks; write 0,3-5 or all"
            )
        first = int(found[1])
        last = int(found[2]) if found[2] else first
        if last < first:
            raise ValueError(f"ranks is {said!r}: the range {part.strip()!r} runs backwards; write {last}-{first}")
        if last - first >= MOST:
            raise ValueError(f"ranks is {said!r}: the range {part.strip()!r} has more than {MOST:,} ranks")
        ranks.update(range(first, last + 1))
    return tuple(sorted(ranks))


def ranks_text(ranks: Sequence[int] | None) -> str:
    """The shortest text that `ranks_from` reads back."""
    if ranks is None:
        return "all"
    parts: list[str] = []
    ordered = sorted(set(ranks))
    while ordered:
        end = 1
        while end < len(ordered) and ordered[end] == ordered[0] + end:
            end += 1
        parts.append(str(ordered[0]) if end == 1 else f"{ordered[0]}-{ordered[end - 1]}")
        ordered = ordered[end:]
    return ",".join(parts)
