"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.catalog import ROWS
from benchmarks.harness import document, table
from benchmarks.harness.machine import Machine
from benchmarks.harness.releases import Release
from benchmarks.harness.report import Outcome, Report
from benchmarks.harness.rounds import measure
from benchmarks.harness.row import Row, Tool
from benchmarks.harness.scale import FULL, QUICK, SCALES, Scale
from benchmarks.harness.worker_processes import WorkerProcesses


def run(rows: Sequence[Row], scale: Scale) -> Report:
    """Measures rows and shows each as it is done.

    Each has processes of its own: what a row leaves behind in one, such as names, tracks or a heap in pieces, would be paid for by
    the rows after it, and the figures would not be those that `--only` gives.
    """
    machine, start = Machine.this(), time.monotonic()
    outcomes: list[Outcome] = []
    for row in rows:
        with WorkerProcesses() as workers:
            outcome = Outcome.of(row, row.title(scale), measure(workers, row, scale))
        outcomes.append(outcome)
        print(table.lines(outcome), flush=True)
    return Report(
        machine=machine,
        scale=scale.name,
        seconds=time.monotonic() - start,
        outcomes=tuple(outcomes),
    )


def chosen(names: Sequence[str]) -> list[Row]:
    """The rows with these keys, or whose keys begin with them and a dot; without names all.

    Raises:
        ValueError: if a name fits no row; says which there are.
    """
    for name in names:
        if not any(_fits(row, name) for row in ROWS):
            raise ValueError(f"no row is called {name!r}; there are: {', '.join(row.key for row in ROWS)}")
    return [row for row in ROWS if not names or any(_fits(row, name) for name in names)]


def _fits(row: Row, name: str) -> bool:
    return row.key == name or row.key.startswith(name + ".")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the arguments say.

    Returns:
        0, or 1 if something of stepscope could not be measured. Missed budgets are shown; they are no error.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measures the cost of stepscope next to other tracers."
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer and smaller rounds: half a minute instead of minutes"
    )
    parser.add_argument("--scale", choices=sorted(SCALES), help="the same, by name")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="measure this row or group of rows; may be repeated"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="put the table there, such as docs/performance.md"
    )
    parser.add_argument(
        "--release", action="store_true", help="write stepscope's figures to benchmarks/results/VERSION.json"
    )
    options = parser.parse_args(arguments)
    try:
        rows = chosen(options.only)
    except ValueError as error:
        parser.error(str(error))
    scale = SCALES[options.scale] if options.scale else QUICK if options.quick else FULL
    report = run(rows, scale)
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    if options.markdown:
        document.write(report, options.markdown)
    if options.release:
        print(f"written: {Release.of(report).write()}")
    missed = [outcome.key for outcome in report.outcomes if outcome.met is False]
    print(
        f"\n{len(rows)} rows in {report.seconds:.0f} s; "
        + (f"missed: {', '.join(missed)}" if missed else "no budget missed")
    )
    return int(any(m.why_not for o in report.outcomes for m in o.measured if m.tool is Tool.STEPSCOPE))
