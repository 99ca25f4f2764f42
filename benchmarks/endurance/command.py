"""The command line of the long runs, and the section of `docs/reliability.md` that they write."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.endurance import leak_check, long_run
from benchmarks.endurance.cycles import Cycles, Kind
from benchmarks.endurance.long_run import LongRun
from benchmarks.endurance.plot import Line, svg
from benchmarks.endurance.watch import Sample
from benchmarks.harness.document import put
from benchmarks.harness.machine import Machine
from benchmarks.harness.worker_processes import ROOT

SPANS = 100_000_000
RATE = 400_000.0
"""Spans per second: what two cores that others use as well record, encode and write without a drop."""
RATES = (400_000.0, 800_000.0, 1_200_000.0, 1_600_000.0, 2_400_000.0)
"""Tried one after another, to find what is the most."""
PROBE = 10.0
"""Seconds of each."""
CYCLES = 10_000
FLAT = 100_000
"""Bytes for a million spans: growth below that, over the second half of a run, is that of allocators and caches."""
LONG = 50_000_000
"""Spans of a run whose second half says how flat memory is."""
FLIGHT_SPANS = 24_000_000
"""Spans of the run that keeps its last steps: a minute."""
FLIGHT_STEPS = 100
FLIGHT_LONG = 10_000_000
FLIGHT_FLAT = 8 << 20
"""Bytes from the second quarter of that run to the last. A quarter of a minute records fifty times as much."""
MB = 1e6


class Report(msgspec.Struct, kw_only=True):
    """The measurements."""

    machine: Machine
    rate: float
    limits: list[tuple[float, int]]
    """Rates tried, and events dropped."""
    long: LongRun
    cycles: list[Cycles]
    flight: LongRun | None = None
    """The run that keeps its last steps."""


def measure(spans: int, rate: float, rates: Sequence[float], cycles: int, flight_spans: int) -> Report:
    """Runs everything and prints the progress."""
    machine = Machine.this()
    limits: list[tuple[float, int]] = []
    for tried in rates:
        limits.append((tried, long_run.run(int(tried * PROBE), tried).dropped))
        print(f"{tried:,.0f} spans/s: {limits[-1][1]:,} dropped", flush=True)
    long = long_run.run(spans, rate, _print_progress)
    print(f"{long.end.spans:,} spans: {long.lost} lost, {long.dropped:,} dropped, {long.end.outputs}", flush=True)
    flight = long_run.run(flight_spans, rate, _print_progress, keep_last=FLIGHT_STEPS) if flight_spans else None
    if flight is not None:
        grown = flight.grown(lambda seen: seen.resident)
        print(
            f"{flight_spans:,} spans, the last {FLIGHT_STEPS} steps kept: memory grew by {grown / MB:.1f} MB",
            flush=True,
        )
    seen: list[Cycles] = []
    for kind in Kind if cycles else ():
        seen.append(_cycles(kind, cycles))
        print(f"{cycles:,} times {kind}: {seen[-1].milliseconds:.1f} ms each", flush=True)
    return Report(machine=machine, rate=rate, limits=limits, long=long, cycles=seen, flight=flight)


def _print_progress(seen: Sample) -> None:
    if int(seen.seconds) % 10 == 0:
        print(f"{seen.seconds:5.0f} s {seen.spans / 1e6:6.1f} million, {seen.resident / MB:.0f} MB", flush=True)


def _cycles(kind: Kind, count: int) -> Cycles:
    with tempfile.TemporaryDirectory(prefix="endurance-") as directory:
        command = [sys.executable, "-m", "benchmarks.endurance.cycles", kind.name, str(count), directory]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return msgspec.json.decode(done.stdout, type=Cycles)


def problems(report: Report) -> list[str]:
    """The broken promises, as text."""
    long = report.long
    found = [f"{long.lost} events lost without a count"] if long.lost else []
    found += leak_check.of_run(long)
    for what, grown in (
        ("allocated memory", long.per_million(lambda seen: seen.private)),
        ("rings", long.per_million(lambda seen: seen.shared)),
    ):
        if grown > FLAT and long.end.spans >= LONG:
            found.append(f"{what} grew by {grown:,.0f} bytes for a million spans; {FLAT:,} is what counts as flat")
    if report.flight is not None:
        found += [f"the flight recorder: {problem}" for problem in _flight_problems(report.flight)]
    for cycles in report.cycles:
        found += leak_check.of_cycles(cycles)
    return found


def _flight_problems(flight: LongRun) -> list[str]:
    found = leak_check.of_run(flight)
    for what, grown in (
        ("memory", flight.grown(lambda seen: seen.resident)),
        ("/dev/shm", flight.grown(lambda seen: seen.shm)),
    ):
        if grown > FLIGHT_FLAT and flight.end.spans >= FLIGHT_LONG:
            found.append(f"{what} grew by {grown:,.0f} bytes; {FLIGHT_FLAT:,} is what counts as flat")
    return found


def section(report: Report, picture: str) -> str:
    """Text, plot and table."""
    long, machine, end = report.long, report.machine, report.long.end
    assert long.last is not None
    best = max((rate for rate, dropped in report.limits if not dropped), default=0.0)
    outputs = ", ".join(
        f"{name} {exported:,} of {offered:,}" + (f" (dropped: {dropped})" if dropped else "")
        for name, (offered, exported, dropped, _) in end.outputs.items()
    )
    half = long.samples[len(long.samples) // 2 :]
    parts = [
        f"{machine.processor}, {machine.cores} cores, {machine.memory / (1 << 30):.0f} GiB, {machine.kernel}, "
        f"{machine.python}. Load average just before: {machine.load:.1f}.",
        f"**{end.spans:,} spans** in {end.recording_seconds:.0f} s ({end.spans / end.recording_seconds:,.0f} a second), "
        f"on four threads, one of which runs tasks that come and go, {end.windows} windows. Rings dropped "
        f"{end.overflow:,}; exported: {outputs}; lost without a count: {long.lost}. "
        f"Written: {long.journal_bytes / 1e9:.1f} GB of journal, {long.chrome_bytes / 1e9:.1f} GB of Chrome JSON.",
        f"![Memory over the run]({picture})",
        f"Memory at the end of the run: {half[-1].private / MB:.0f} MB allocated, {half[-1].shared / MB:.0f} MB of rings. "
        f"Growth over the second half, by least squares: {long.per_million(lambda s: s.private):,.0f} bytes of allocated "
        f"memory and {long.per_million(lambda s: s.shared):,.0f} bytes of rings for a million spans.",
        f"Closing took {end.closing_ns / 1e6:.0f} ms. Then {len(end.threads)} of our threads ran, the process had "
        f"{long.last.descriptors} descriptors (while it recorded: {half[0].descriptors}), {len(end.descriptors)} of them the "
        f"recorder's and libuv's, which a process has once and until it ends, and ended {long.exit_seconds * 1e3:.0f} ms "
        f"after it was let go, with status {long.status} and {len(long.left)} directories left in /dev/shm.",
        "Events dropped in ten seconds, by rate: "
        + ", ".join(f"{rate:,.0f} spans/s {dropped:,}" for rate, dropped in report.limits)
        + f". The highest of these rates at which nothing was dropped: {best:,.0f} spans/s.",
    ]
    if report.flight is not None:
        flight = report.flight
        parts.append(
            f"**{flight.end.spans:,} spans with `keep_last`**, {FLIGHT_STEPS} steps, {flight.end.windows} windows saved: memory "
            f"{flight.samples[-1].resident / MB:.0f} MB at the end, of which rings and stored steps "
            f"{flight.samples[-1].shared / MB:.0f} MB; from the second quarter of the run to the last it grew by "
            f"{flight.grown(lambda s: s.resident) / MB:.1f} MB."
        )
    if report.cycles:
        parts.append(table(report.cycles))
    return "\n\n".join(parts)


def table(all_cycles: Sequence[Cycles]) -> str:
    """The cycles: values at the first sample and at the last, and how memory grew over the second half: resident, and in use."""
    head = "| cycle | times | ms each | descriptors | threads | tracks | names | /dev/shm, KB | memory, MB | bytes a cycle | in use |"
    rows = [head, "| --- |" + " ---: |" * 10]
    for c in all_cycles:
        first, last = c.samples[0], c.samples[-1]
        resident, in_use = c.grown([s.resident for s in c.samples]), c.grown(c.heap)
        cells = [
            c.kind, f"{c.count:,}", f"{c.milliseconds:.1f}",
            f"{first.descriptors} → {last.descriptors}", f"{first.threads} → {last.threads}",
            f"{c.tracks[0]} → {c.tracks[-1]}", f"{c.names[0]} → {c.names[-1]}",
            f"{first.shm / 1e3:.0f} → {last.shm / 1e3:.0f}",
            f"{first.resident / MB:.1f} → {last.resident / MB:.1f}", f"{resident:.1f}", f"{in_use:.1f}",
        ]  # fmt: skip
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def picture(report: Report) -> str:
    """Memory over the run."""
    samples = report.long.samples
    return svg(
        f"Memory of a process that records {report.long.end.spans / 1e6:.0f} million spans",
        "million spans",
        "MB",
        [
            Line("allocated and rings", [(s.spans / 1e6, s.resident / MB) for s in samples]),
            Line("rings", [(s.spans / 1e6, s.shared / MB) for s in samples]),
        ],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the arguments say.

    Returns:
        0, or 1 if something was lost or left behind.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endurance", description="Long runs, watched.")
    parser.add_argument("--spans", type=int, default=SPANS)
    parser.add_argument("--rate", type=float, default=RATE, help=f"spans per second; default {RATE:,.0f}")
    parser.add_argument("--no-limits", action="store_true", help="do not look for the highest rate")
    parser.add_argument("--cycles", type=int, default=CYCLES, help="of each kind; 0 for none")
    parser.add_argument(
        "--flight-spans", type=int, default=FLIGHT_SPANS, help="spans of the run that keeps its last steps; 0 for none"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write all that was seen there, as JSON")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="read", help="measure nothing, read such a file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="put the section into this page")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the memory of the long run there")
    options = parser.parse_args(arguments)
    if options.read:
        report = msgspec.json.decode(options.read.read_bytes(), type=Report)
    else:
        rates = () if options.no_limits else RATES
        report = measure(options.spans, options.rate, rates, options.cycles, options.flight_spans)
    if options.report:
        options.report.write_bytes(msgspec.json.encode(report))
    if options.plot:
        options.plot.write_text(picture(report))
    if options.markdown:
        put(
            options.markdown,
            "endurance",
            section(report, options.plot.name if options.plot else ""),
            title="Reliability",
        )
    found = problems(report)
    print("\n".join(found) if found else "nothing lost, nothing left")
    return int(bool(found))
