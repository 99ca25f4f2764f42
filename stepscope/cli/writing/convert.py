"""`stepscope convert`: writes a journal in another format."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable
from pathlib import Path

import anyio
import msgspec

from stepscope.cli.common import opening
from stepscope.cli.common.messages import Progress, add_json, message, print_json
from stepscope.cli.writing.recover import is_trace
from stepscope.collector.runs.evicted import beyond, gaps_of, read_evicted
from stepscope.exporters import formats as registered_formats
from stepscope.runtime.accounting.ledger import Ledger
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.errors import INCOMPLETE, FormatError, NoWindowError
from stepscope.runtime.export.exporter import Exporter
from stepscope.runtime.export.formats import exporter_for, known, writing
from stepscope.runtime.files.paths import absolute
from stepscope.runtime.flight.saved import window_name
from stepscope.runtime.journal import segments
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.replay import Replayed, replay_into, run_of
from stepscope.runtime.recovery.journals import Journals, choose, suggest_journals
from stepscope.runtime.session.note import JOURNAL, WINDOWS, can_recover
from stepscope.runtime.settings.validation import did_you_mean
from stepscope.runtime.windows.window import Window, which_windows

_REGISTERED = (registered_formats,)
"""Imported for the formats that it registers."""


def described_formats(**more: str) -> str:
    """The formats with their file endings, a line each, for a command's help.

    Args:
        more: what to say of further formats, by their names.
    """
    rows = [(one.name, " ".join(one.suffixes)) for one in known()]
    lines = "\n".join(f"  {name:12} {text}" for name, text in [*rows, *more.items()])
    return f"formats and their file endings:\n{lines}"


def add_format(parser: argparse.ArgumentParser) -> None:
    """Declares `--format`."""
    parser.add_argument("--format", metavar="F", help="name of the format, if the ending of OUT does not say it")


def check_format(arguments: argparse.Namespace, target: Path, more: Iterable[str] = ()) -> None:
    """Refuses an unknown format as wrong usage.

    Args:
        arguments: those of the command line.
        target: the file to write.
        more: names of further formats that the command has.
    """
    names = sorted({*(one.name for one in known()), *more})
    if arguments.format is not None and arguments.format not in names:
        arguments.parser.error(f"unknown format {arguments.format!r}{did_you_mean(arguments.format, names)}")
    try:
        exporter_for(target, arguments.format)
    except ValueError as error:
        parser: argparse.ArgumentParser = arguments.parser
        parser.error(str(error))


HELP = "write a journal in another format"
USAGE = "stepscope convert IN OUT [options]"
DESCRIPTION = f"Writes a run's journal, also a damaged one, in another format.\n\n{described_formats()}"
EPILOG = """\
examples:
  stepscope convert runs/exp1 trace.json                  for https://ui.perfetto.dev
  stepscope convert runs/exp1/journal second.json.gz --window 1
  stepscope convert runs/exp1 tb/worker.pt.trace.json     for tensorboard --logdir tb

If a run's directory has several journals, the newest is taken.
`stepscope merge runs/exp1 --steps 100-120 -o steps.json` writes some steps only.

exit codes: 0 written, 1 failed, 2 wrong usage, 3 written, but without parts of the journal that could not be read, 4 there
is no such window
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("source", metavar="IN", type=Path, help="directory of a run, or a journal")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument(
        "target", metavar="OUT", type=Path, nargs="?", help="file to write; its ending chooses the format"
    )
    target.add_argument("-o", "--out", metavar="OUT", type=Path, help="the same")
    add_format(parser)
    parser.add_argument("--window", metavar="N", type=int, help="write only this window; 0 is the first")
    add_json(parser, "how much was written, and what the run and damage lost")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        OSError: if the journal cannot be read, or the output not written.
        FormatError: if there is no journal, it is not a journal, or has no such window (`NoWindowError`).
    """
    parser: argparse.ArgumentParser = arguments.parser
    source, target = arguments.source, arguments.target or arguments.out
    check_format(arguments, target)
    journal = journal_of(source, arguments.window)
    if target.exists() and journal.exists() and target.samefile(journal):
        parser.error("OUT is IN: give the output another name")
    replayed, written = write(journal, target, arguments.format, arguments.window)
    hint_at_recovery(journal.parent)
    if arguments.json:
        print_json({"written": written, **msgspec.to_builtins(replayed)})
    elif lost := _lost(replayed.ledger):
        print(f"the run's accounts: {lost}")
    return INCOMPLETE if replayed.damage.harm() else 0


def journal_of(source: Path, window: int | None = None) -> Path:
    """The journal at a path; for a directory, the journal that `recover` takes.

    Args:
        source: directory of a run, or a journal.
        window: number of a window, of which a flight recorder has a journal of its own.

    Raises:
        FormatError: if there is none.
    """
    if not segments.exists(source):
        raise FormatError(f"there is no run or journal at {source}")
    if source.is_dir():
        return _journal_in(source, window)
    if is_trace(source):
        run = opening.shown(source.parent)
        hint = f": {run}" if Journals.of(source.parent).found else ""
        raise FormatError(f"{source} is a trace, and not a journal: name the directory of the run that wrote it{hint}")
    return source


def write(journal: Path, target: Path, format: str | None = None, window: int | None = None) -> tuple[Replayed, Path]:
    """Writes a journal in another format, and says on standard error how much that was.

    Args:
        journal: file to read.
        target: file to write.
        format: name of the format, if the ending of the target does not say it.
        window: number of the only window to write.

    Returns:
        How much was written, and the file: a journal does not replace another.

    Raises:
        OSError: if the journal cannot be read, or the output not written.
        FormatError: if it is not a journal, or has no such window (`NoWindowError`).
    """
    directory = absolute(target).parent
    with Progress("converting"), writing(target, format) as exporter:
        replayed = anyio.run(_replay, journal, exporter, directory, window)
    written: Path = getattr(exporter, "path", target)
    cut = f" ({replayed.unfinished} without an end)" if replayed.unfinished else ""
    windows = f"{human_count(replayed.windows, 'window')}{cut}"
    message(f"{human_count(replayed.events, 'event')} of {windows} written to {written}")
    if replayed.damage:
        message(f"{journal} is damaged, and this could not be used: {replayed.damage}")
    if not replayed.events:
        message(f"{journal} holds no events: the run was killed before it recorded any, or the file is empty")
    return replayed, written


async def _replay(source: Path, exporter: Exporter, directory: Path, window: int | None) -> Replayed:
    with JournalReader(source) as reader:
        replayed = await replay_into(reader, exporter, run_of(reader, directory), window)
        gaps = gaps_of(reader.frames, read_evicted(source))
    if window is not None and not replayed.windows:
        with JournalReader(source) as reader:
            without_events = reader.items(wanted=lambda _: False)
            numbers = sorted({item.index for item in without_events if isinstance(item, Window)})
        raise NoWindowError(f"{source} has no window {window}; {which_windows(numbers)}")
    return msgspec.structs.replace(replayed, damage=beyond(replayed.damage, gaps))


def _journal_in(directory: Path, window: int | None) -> Path:
    """The journal of a directory: the one that `recover` takes. Prints which."""
    journals = Journals.of(directory)
    if not journals.found and window is not None:
        for saved in (directory / WINDOWS).glob(f"{window_name(window, None)}*.journal"):
            return saved
    choice = choose(directory, force=True)
    chosen = choice.journal or journals.newest()
    if chosen is None:
        hint_at_recovery(directory)
        if choice.missing:
            raise FormatError(f"no journal in {directory} can be used: {'; '.join(choice.missing)}")
        raise FormatError("; ".join(filter(None, (f"{directory} has no journal", suggest_journals(directory)))))
    others = journals.others(chosen)
    unused = f" (not {others}: name one to convert it)" if others else ""
    message(f"reading {opening.shown(chosen)}{unused}")
    return chosen


def hint_at_recovery(directory: Path) -> None:
    """Names the command that brings back the rest of a journal, if its process was killed."""
    if can_recover(directory):
        recover = f"stepscope recover {shlex.quote(opening.shown(directory))}"
        message(f"a process that wrote here was killed: more may be had with {recover}")


def _lost(ledger: Ledger) -> str:
    """The accounts of the run and its journal if events are missing, such as `98 of 100 events; dropped: 2 of recorder (overflow)`."""
    outputs = {name: output for name, output in ledger.outputs.items() if name == JOURNAL}
    lost = ledger.dropped() or any(output.dropped for output in outputs.values())
    return str(msgspec.structs.replace(ledger, outputs=outputs)) if lost else ""
