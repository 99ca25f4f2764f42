"""Sections of pages that are written by runs, such as in `docs/performance.md`; people write the text around them."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness import table
from benchmarks.harness.machine import Machine
from benchmarks.harness.report import Report


def section(report: Report) -> str:
    """Machine, table and notes."""
    machine = report.machine
    absent = [name for name, version in machine.packages.items() if not version]
    parts = [
        f"{machine_text(machine)}." + (f" Not installed: {', '.join(absent)}." if absent else ""),
        f"Scale: {report.scale}, {report.seconds:.0f} s. Load average just before: {machine.load:.1f}.",
        table.markdown(report),
        "Seen besides (medians):",
        table.notes(report),
    ]
    return "\n\n".join(part for part in parts if part)


def machine_text(machine: Machine) -> str:
    """The machine and the versions of packages, on one line."""
    versions = ", ".join(f"{name} {version}" for name, version in machine.packages.items() if version)
    return f"{machine.processor}, {machine.cores} cores, {machine.kernel}, {machine.python}; {versions}"


def write(report: Report, path: Path) -> None:
    """Puts the section in its place between the markers, or into a new file.

    Raises:
        ValueError: if the file exists and lacks the markers.
    """
    put(path, "measured", section(report), title="Performance")


def put(path: Path, name: str, body: str, *, title: str) -> None:
    """Puts text between the markers of this name in a page, or into a new page with this title.

    Raises:
        ValueError: if the page exists and lacks the markers.
    """
    begin, end = markers(name)
    body = f"{begin}\n\n{body}\n\n{end}"
    if not path.exists():
        path.write_text(f"# {title}\n\n{body}\n")
        return
    before, found, rest = path.read_text().partition(begin)
    _, also, after = rest.partition(end)
    if not found or not also:
        raise ValueError(f"{path} has no place for the text: it needs the lines {begin} and {end}")
    path.write_text(before + body + after)


def markers(name: str) -> tuple[str, str]:
    """The lines before and after text that a run writes."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
