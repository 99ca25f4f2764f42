"""The answer in few lines, for the end of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Console
from rich.text import Text

from stepscope.analysis.findings import Answer, Finding, RankAnswer
from stepscope.analysis.terminal import (
    PLACE,
    Line,
    facts_of_steps,
    finding_lines,
    parts,
    shown_rank,
    verdict,
    without_steps,
    wrapped,
)

MOST_LINES = 15
MOST_ROWS = 4
"""Parts of a step."""


def show_short(answer: Answer, console: Console, notes: Sequence[tuple[str, str]] = (), more: str = "") -> None:
    """Writes the verdict, its evidence, where the time goes, and trust, in few lines.

    Args:
        answer: of the run.
        console: where to write.
        notes: what else the end has to say, such as where files are: a label, and the text.
        more: the command that shows the rest.
    """
    trust = answer.trust + (f" All of it: {more}" if more else "")
    last = [*(Line(Text(text), 2, label) for label, text in notes), Line(Text(trust), 2, "Trust", "dim")]
    rank = shown_rank(answer)
    rest = [text for line in [*_table(answer, rank), *last] for text in wrapped(line, console)]
    for text in [Text(), *_fitting(answer, console, MOST_LINES - 1 - len(rest)), *rest]:
        console.print(text, soft_wrap=True)


def _fitting(answer: Answer, console: Console, room: int) -> list[Text]:
    """As much of the first finding as fits. Evidence without a place is left out first, from the third sentence on, then the gain."""
    found: Finding | None = answer.findings[0] if answer.findings and not answer.refused else None
    while True:
        said = list(verdict(answer)) if found is None else list(finding_lines(found, first=True))
        if len(answer.findings) > 1:
            others = "; ".join(finding.title.partition(":")[0].rstrip(".") for finding in answer.findings[1:])
            said.append(Line(Text(others), 2, "Also", "dim"))
        texts = [text for line in said for text in wrapped(line, console)]
        if len(texts) <= room or found is None:
            break
        placeless = [each for each in found.evidence[2 if found.gain else 1 :] if not PLACE.search(each)]
        if placeless:
            kept = tuple(each for each in found.evidence if each != placeless[-1])
            found = msgspec.structs.replace(found, evidence=kept)
        elif found.gain:
            found = msgspec.structs.replace(found, gain="")
        elif len(found.evidence) > 1:
            found = msgspec.structs.replace(found, evidence=found.evidence[:-1])
        else:
            break
    return texts[: max(room, 1)]


def _table(answer: Answer, rank: RankAnswer | None) -> Iterator[Line]:
    """Where the time goes, in few lines: the parts of a step, or tasks."""
    if rank is None:
        yield from without_steps(answer)
        return
    yield Line(Text(facts_of_steps(answer, rank), "dim"))
    yield from parts(rank.shares, MOST_ROWS)
