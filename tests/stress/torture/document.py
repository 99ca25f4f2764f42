"""The section of `docs/reliability.md` that a run of all faults writes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.document import put
from benchmarks.harness.machine import Machine, file_system
from tests.stress.torture import table
from tests.stress.torture.catalog import Catalog, description
from tests.stress.torture.tally import Tally


def section(machine: Machine, tallies: Sequence[Tally], catalog: Catalog, seconds: float, seed: int) -> str:
    """Machine, table, remarks, and what each fault does."""
    shared, here = file_system(Path("/dev/shm")), file_system(Path(tempfile.gettempdir()))
    parts = [
        f"{machine.processor}, {machine.cores} cores, {machine.memory / (1 << 30):.0f} GiB, {machine.kernel}, "
        f"{machine.python}; rings on {shared}, files on {here}. {seconds:.0f} s, first trial {seed}.",
        table.markdown(tallies),
    ]
    remarks = table.remarks(tallies)
    if remarks:
        parts.append("\n".join(f"- {remark}" for remark in remarks))
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
