"""stepscope's figures of each release, in benchmarks/results/, and their table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.harness.document import machine_text
from benchmarks.harness.report import Report
from benchmarks.harness.table import spread
from benchmarks.harness.worker_processes import ROOT

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"


class Result(msgspec.Struct, frozen=True):
    """The figures of stepscope's part of a row."""

    title: str
    unit: str
    median: float
    lowest: float
    highest: float


class Release(msgspec.Struct, frozen=True):
    """A run of the benchmarks with the version that was released."""

    version: str
    machine: str
    rows: dict[str, Result]

    @classmethod
    def of(cls, report: Report) -> Release:
        """Takes stepscope's figures out of a report."""
        rows = {
            outcome.key: Result(outcome.title, outcome.unit, own.median, min(own.values), max(own.values))
            for outcome in report.outcomes
            if (own := outcome.own) is not None and own.median is not None
        }
        return cls(report.machine.packages["stepscope"], machine_text(report.machine), rows)

    def write(self, directory: Path = RESULTS) -> Path:
        """Writes `<version>.json`."""
        path = directory / f"{self.version}.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")
        return path


def releases(directory: Path = RESULTS) -> list[Release]:
    """Returns all releases, the oldest first."""
    found = [msgspec.json.decode(path.read_bytes(), type=Release) for path in directory.glob("*.json")]
    return sorted(found, key=lambda release: [int(number) for number in re.findall(r"\d+", release.version)])


def section(found: Sequence[Release]) -> str:
    """The machines, and a table with a column for each release."""
    keys = dict.fromkeys(key for release in reversed(found) for key in release.rows)
    newest = {key: row for release in found for key, row in release.rows.items()}
    head = ["row", "what", *(release.version for release in found)]
    lines = [head, ["---"] * len(head)]
    for key in keys:
        values = (release.rows.get(key) for release in found)
        cells = ("" if row is None else spread([row.lowest, row.highest], row.median, row.unit) for row in values)
        lines.append([f"`{key}`", newest[key].title, *cells])
    machines = "\n".join(f"- {release.version}: {release.machine}" for release in found)
    return machines + "\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)
