"""The command line of the torture."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness.machine import Machine
from tests.stress.torture import table
from tests.stress.torture.fault import PACKAGE, Catalog, load
from tests.stress.torture.faults.chance import FAMILY
from tests.stress.torture.run import Tally, torture
from tests.stress.torture.worker import LIMIT
from tests.support.basics import heed_interrupts

SECONDS = 330.0
"""Seconds that a full run may take."""

LANES = 2
"""Most trials wait for something most of the time."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the arguments say.

    Returns:
        0, or 1 if something was lost, was not as promised, or a family could not be imported.
    """
    options = _parser().parse_args(arguments)
    heed_interrupts()
    catalog = load(options.package)
    try:
        catalog = catalog.chosen([FAMILY] if options.chance else options.only)
    except ValueError as error:
        _parser().error(str(error))
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    machine, start = Machine.this(), time.monotonic()
    faults = [fault for fault in catalog.faults if fault.short or not options.short]
    if options.chance:
        faults = [msgspec.structs.replace(fault, trials=sys.maxsize) for fault in faults]
    tallies = torture(
        faults,
        short=options.short,
        seed=seed,
        seconds=options.seconds if options.minutes is None else options.minutes * 60,
        limit=options.limit,
        lanes=options.lanes,
        package=options.package,
        progress=_failures() if options.chance else _progress(catalog),
    )
    seconds = time.monotonic() - start
    for tally in tallies if options.chance else ():
        tally.wanted = tally.attempts
    if sys.stderr.isatty():
        print(end="\r\033[K", file=sys.stderr)
    bad = _bad(tallies, catalog)
    print(table.lines(tallies))
    for remark in [*table.remarks(tallies), *(f"{name}: {why}" for name, why in catalog.broken.items())]:
        print(f"  {remark}")
    verdict = f"{bad} NOT AS PROMISED" if bad else "nothing lost, nothing blocked"
    print(f"\n{len(tallies)} faults in {seconds:.0f} s: {verdict}; the same again: --seed {seed}")
    if options.markdown:
        table.write(options.markdown, table.section(machine, tallies, catalog, seconds, seed))
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(_report(machine, tallies, seconds, seed))))
    return int(bad > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.stress.torture", description="Breaks the runtime in every way."
    )
    parser.add_argument("--short", action="store_true", help="each fault as often as in the tests")
    parser.add_argument(
        "--only", action="append", default=[], metavar="FAMILY", help="this family, or FAMILY/FAULT; may be repeated"
    )
    parser.add_argument(
        "--chance",
        action="store_true",
        help="trials by chance only, as many as there is time for; one with --minutes 0",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="number of the first trial; default: by chance")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help=f"to share; default {SECONDS:g}")
    parser.add_argument("--minutes", type=float, metavar="M", help="to share, instead of --seconds")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="S", help=f"of a trial; default {LIMIT:g}")
    parser.add_argument(
        "--lanes", type=int, default=LANES, metavar="N", help=f"trials at a time, where they may be; default {LANES}"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="put the table into this page")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row there")
    parser.add_argument("--package", default=PACKAGE, help=argparse.SUPPRESS)
    return parser


def _bad(tallies: Sequence[Tally], catalog: Catalog) -> int:
    return sum(not tally.good for tally in tallies) + len(catalog.broken) + (not tallies)


def _progress(catalog: Catalog) -> Any:
    def show(tally: Tally, elapsed: float) -> None:
        if not sys.stderr.isatty():
            return
        at = catalog.faults.index(tally.fault) + 1
        text = f"{elapsed:4.0f} s  {at}/{len(catalog.faults)}  {tally.fault.family}: {tally.fault.name}"
        text += f" ({tally.attempts + 1} of {tally.wanted})"
        print(end=f"\r\033[K{text[: shutil.get_terminal_size().columns - 1]}", file=sys.stderr, flush=True)

    return show


def _failures() -> Any:
    """Tells of what has failed while the run goes on."""
    printed = 0

    def show(tally: Tally, elapsed: float) -> None:
        nonlocal printed
        for problem in tally.problems[printed:]:
            print(f"{elapsed:4.0f} s  {problem}", file=sys.stderr, flush=True)
        printed = len(tally.problems)

    return show


def _report(machine: Machine, tallies: Sequence[Tally], seconds: float, seed: int) -> dict[str, Any]:
    return {
        "machine": machine,
        "seconds": seconds,
        "seed": seed,
        "faults": [
            {
                "family": tally.fault.family,
                "name": tally.fault.name,
                **msgspec.structs.asdict(tally.outcome),
                "lost": tally.lost,
                "problems": tally.problems,
                "missing": tally.missing,
                "attempts": tally.attempts,
                "wanted": tally.wanted,
                "seconds": tally.seconds,
            }
            for tally in tallies
        ],
    }
