"""The table of a run: for the terminal, and in the section of `docs/reliability.md` that a run of all faults writes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.document import put
from benchmarks.harness.machine import Machine, file_system
from tests.stress.torture.fault import Catalog, description
from tests.stress.torture.run import Tally

HEAD = ("fault", "tried", "produced", "exported", "dropped", "lost", "thread blocked", "shutdown")


def cells(tally: Tally) -> tuple[str, ...]:
    """One row. Counts of events; the longest times."""
    outcome = tally.outcome
    if not outcome.tried:
        return (tally.fault.name, "0", *[""] * 6)
    return (
        tally.fault.name,
        f"{outcome.tried:,}",
        f"{outcome.produced:,}",
        f"{outcome.exported:,}",
        f"{outcome.dropped:,}",
        f"{tally.lost:,}",
        _time(outcome.blocked_ns),
        _time(outcome.shutdown_ns),
    )


def lines(tallies: Sequence[Tally]) -> str:
    """For the terminal."""
    rows = [HEAD, *(cells(tally) for tally in tallies)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    shown: list[str] = [_line(HEAD, widths)]
    family = ""
    for tally, row in zip(tallies, rows[1:], strict=True):
        if tally.fault.family != family:
            family = tally.fault.family
            shown.append(f"{family}")
        shown.append(_line(row, widths) + ("" if tally.good else "   <-- see below"))
    return "\n".join(shown)


def markdown(tallies: Sequence[Tally]) -> str:
    """For a page."""
    head = ["family", *HEAD]
    rows = [head, ["---"] * 2 + ["---:"] * (len(HEAD) - 1), *([t.fault.family, *cells(t)] for t in tallies)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def remarks(tallies: Sequence[Tally]) -> list[str]:
    """The problems, trials that were cut short, and faults that could not be tried, which the table does not show."""
    lines: list[str] = []
    for tally in tallies:
        name = f"{tally.fault.family}/{tally.fault.name}"
        lines += [f"{name}, {problem}" for problem in tally.problems]
        if tally.hung and tally.attempts < tally.wanted:
            lines.append(f"{name}: not tried again after it hung")
        if tally.cut_short:
            lines.append(f"{name}: {tally.attempts} of {tally.wanted} trials, the time was up")
        if tally.missing:
            lines.append(f"{name}: not tried, {tally.missing}")
    return lines


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = row
    return f"  {first:<{widths[0]}}  " + "  ".join(f"{c:>{w}}" for c, w in zip(others, widths[1:], strict=True))


def _time(ns: int) -> str:
    if not ns:
        return ""
    return f"{ns / 1e9:.2f} s" if ns >= 1e9 else f"{ns / 1e6:.3g} ms" if ns >= 1e6 else f"{ns / 1e3:.3g} us"


def section(machine: Machine, tallies: Sequence[Tally], catalog: Catalog, seconds: float, seed: int) -> str:
    """Machine, table, remarks, and what each fault does."""
    shared, here = file_system(Path("/dev/shm")), file_system(Path(tempfile.gettempdir()))
    parts = [
        f"{machine.processor}, {machine.cores} cores, {machine.memory / (1 << 30):.0f} GiB, {machine.kernel}, "
        f"{machine.python}; rings on {shared}, files on {here}. {seconds:.0f} s, first trial {seed}.",
        markdown(tallies),
    ]
    if notes := remarks(tallies):
        parts.append("\n".join(f"- {note}" for note in notes))
    parts.append("### What each fault does")
    for family in catalog.families:
        about = catalog.about[family]
        named: dict[str, list[str]] = {}
        for fault in catalog.faults:
            if fault.family == family:
                named.setdefault(description(fault), []).append(f"*{fault.name}*")
        items = [f"- {', '.join(names)}: {what}" for what, names in named.items()]
        parts.append("\n".join([f"**{family}**. {about}", "", *items]))
    return "\n\n".join(parts)


def write(path: Path, text: str) -> None:
    """Puts the section in its place.

    Raises:
        ValueError: if the page exists and has no place for it.
    """
    put(path, "torture", text, title="Reliability")
