"""`stepscope recover`: brings back what a run had recorded when it died."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stepscope.cli import opening
from stepscope.cli.progress import Progress
from stepscope.exporters.repair import repair_chrome
from stepscope.exporters.rotation import PART
from stepscope.runtime.errors import FormatError, ProfilerStateError, RecoveredError
from stepscope.runtime.recovery.recover import Recovery, recover

DESCRIPTION = """\
Makes one complete journal of what a run left when its process died: its journal, and what its threads had recorded
since, which is still in memory. Traces of the run that were cut off become valid JSON again. Nothing is lost that had
been recorded, unless the machine itself went down.
"""

EPILOG = """\
examples:
  stepscope recover runs/exp1
  stepscope recover runs/exp1 --out exp1.journal && stepscope convert exp1.journal trace.json

Of several journals the newest is taken. A run that ended in order has nothing to recover: convert it.

exit codes: 0 recovered, 1 nothing to recover, the process still runs, or journal.recovered exists and what it was made
from does not, 2 wrong usage
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declares the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "recover",
        parents=[common],
        help="bring back what a run had recorded when it died",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="directory of the run, or its journal")
    parser.add_argument("--out", metavar="FILE", type=Path, help="journal to write (default: journal.recovered in DIR)")
    parser.add_argument(
        "--force",
        action="store_true",
        help="although the process still runs, or FILE exists and what it was made from is gone",
    )
    parser.add_argument(
        "--remove-session", action="store_true", help="then delete what the run had in memory, which frees it"
    )
    parser.set_defaults(function=run, command="recover", parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        FormatError: if there is nothing to recover, or a recovered journal would be replaced by a poorer one.
        ProfilerStateError: if the process still runs.
        OSError: if files cannot be read or written.
    """
    directory: Path = arguments.directory
    if not directory.exists():
        arguments.parser.error(f"there is no {directory}")
    try:
        with Progress().during(f"recovering {opening.shown(directory)}"):
            recovered = recover(
                directory, arguments.out, force=arguments.force, remove_session=arguments.remove_session
            )
    except ProfilerStateError as error:
        raise ProfilerStateError(f"{error} (--force)") from error
    except RecoveredError as error:
        raise RecoveredError(f"{error} (--out, --force)") from error
    print(recovered.text())
    if directory.is_dir():
        _repair_traces(directory, recovered)
    print(f"see it: {opening.convert(recovered.journal, 'trace.json')}, then {opening.perfetto(Path('trace.json'))}")
    return 0


def _repair_traces(directory: Path, recovered: Recovery) -> None:
    """Completes the Chrome traces that were cut off."""
    for path in sorted(directory.rglob("*.json*")):
        if not path.name.removesuffix(PART).endswith((".json", ".json.gz")) or not path.is_file():
            continue
        if path.is_symlink():
            print(f"not repaired: {path} is a symbolic link")
            continue
        try:
            repair = repair_chrome(path)
        except FormatError as error:
            print(f"not repaired: {error}")
            continue
        if repair.lost >= 0:
            print(f"completed {repair.path}, {repair.lost:,} bytes of an unfinished event were cut off")
