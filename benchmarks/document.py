"""The section of `docs/performance.md` that is written by a run; the text around it is written by people."""

from __future__ import annotations

from pathlib import Path

from benchmarks import table
from benchmarks.report import Report

BEGIN = "<!-- measured: begin -->"
END = "<!-- measured: end -->"


def section(report: Report) -> str:
    """Machine, table and notes."""
    machine = report.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.packages.items() if version)
    absent = [name for name, version in machine.packages.items() if not version]
    parts = [
        f"{machine.processor}, {machine.cores} cores, {machine.kernel}, {machine.python}; {versions}."
        + (f" Not installed: {', '.join(absent)}." if absent else ""),
        f"Scale: {report.scale}, {report.seconds:.0f} s. Load average just before: {machine.load:.1f}.",
        table.markdown(report),
        "Seen besides (medians):",
        table.notes(report),
    ]
    return "\n\n".join(part for part in parts if part)


def write(report: Report, path: Path) -> None:
    """Puts the section in its place between the markers, or into a new file.

    Raises:
        ValueError: if the file exists and lacks the markers.
    """
    body = f"{BEGIN}\n\n{section(report)}\n\n{END}"
    if not path.exists():
        path.write_text(f"# Performance\n\n{body}\n")
        return
    text = path.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no place for the table: it needs the lines {BEGIN} and {END}")
    path.write_text(before + body + after)
