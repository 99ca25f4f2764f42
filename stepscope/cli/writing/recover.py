"""`stepscope recover`: brings back what a run had recorded when it died."""

from __future__ import annotations

import argparse
import errno
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import msgspec

from stepscope.cli.common import opening
from stepscope.cli.common.messages import Progress, add_json, message, print_json, print_result
from stepscope.exporters.files.output import PART
from stepscope.exporters.files.rewriting import rewrite_trace
from stepscope.runtime.errors import INCOMPLETE, FormatError, OutputError, ProfilerStateError, RecoveredError
from stepscope.runtime.journal import segments
from stepscope.runtime.recovery.journals import being_written, unfinished
from stepscope.runtime.recovery.recover import Recovery, recover
from stepscope.runtime.session.note import is_note, notes_in

HELP = "bring back what a run had recorded when it died"
DESCRIPTION = """\
Brings back what a run had recorded when its process died. It completes the run's journal with the last moments, which are
still in memory, and then writes the run's traces anew from it. It changes no other file, and says what is missing. The
memory must still be there: a container's /dev/shm goes with the container.
"""

EPILOG = """\
examples:
  stepscope recover runs/exp1
  stepscope recover runs/exp1 --out exp1.journal && stepscope convert exp1.journal trace.json

Every run that was killed in DIR is recovered. Where DIR has no note of such a run, the newest journal is taken. A run that
ended normally has nothing to recover: convert it. Recovering a run again gives the same, as long as it is still in memory.

exit codes: 0 recovered, also again, 1 nothing to recover, or not any more, or the process still runs, 2 wrong usage,
3 recovered what there was, but something is missing that is named
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("path", metavar="DIR", type=Path, help="directory of the run, or its journal")
    parser.add_argument("-o", "--out", metavar="FILE", type=Path, help="copy the journal to FILE and complete the copy")
    parser.add_argument(
        "--force",
        action="store_true",
        help="go on even if the process still runs; with --out",
    )
    parser.add_argument(
        "--remove-session", action="store_true", help="then delete what the run left in memory, which frees that"
    )
    add_json(parser, "what was recovered")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        FormatError: if there is nothing to recover.
        ProfilerStateError: if the process still runs.
        OSError: if files cannot be read or written.
    """
    named: Path = arguments.path
    print_line = message if arguments.json else print_result
    if not segments.exists(named):
        raise FormatError(f"there is no run or journal at {named}")
    if named.is_file() and not is_note(named) and is_trace(named):
        directory = named.absolute().parent
        run = shlex.quote(opening.shown(directory)) if notes_in(directory, []) else "RUN"
        raise FormatError(
            f"{named} is a trace, and a run is recovered from its directory. However it was cut, Perfetto opens it as it is if it is "
            f"a .pftrace or Chrome JSON in array form. To recover its run and write it anew: stepscope recover {run}"
        )
    if arguments.force and arguments.out is None:
        arguments.parser.error("--force needs --out FILE: the journal of a process that runs is copied, not changed")
    whole = named.is_dir()
    place = named if whole else named.parent
    notes = unfinished(place, [], force=arguments.force) if whole or is_note(named) else []
    notes = [(path, note) for path, note in reversed(notes) if whole or path.name == named.name]
    if whole and not arguments.remove_session:
        notes = [(path, note) for path, note in notes if not note.recovered_ns] or notes
    several = [path for path, _ in notes] if len(notes) > 1 and arguments.out is None else []
    # A session may be that of several runs: it goes with the last of them.
    last = {note.directory: path for path, note in notes}
    removing = {path for path in several or [named] if arguments.remove_session and path in (named, *last.values())}
    recovered = [
        found
        for path in several or [named]
        if (found := _recover(path, arguments, bool(several), path in removing)) is not None
    ]
    for each in recovered:
        print_line(each.text())
        if each.session is not None and not arguments.remove_session:
            print_line(f"  {each.session} stays until --remove-session, or a later run, frees it")
    living = being_written(place) if whole or notes else set[str]()
    rewritten = [rewrite_traces(each, place, living, print_line) for each in recovered if notes]
    if recovered:
        trace = next(filter(is_trace, rewritten[-1][0] if rewritten else []), None)
        view = opening.command("view", recovered[-1].journal)
        print_line(f"see it: {view if trace is None else opening.perfetto(trace)}")
    complete = len(recovered) == len(several or [named]) and not any(each.missing for each in recovered)
    complete = complete and all(done for _, done in rewritten)
    if arguments.json:
        runs = [msgspec.structs.replace(each, note=None) for each in recovered]
        print_json({"complete": complete, "runs": runs, "written": [path for paths, _ in rewritten for path in paths]})
    if complete:
        return 0
    message("stepscope recover: not all could be brought back, see above")
    return INCOMPLETE


def _recover(named: Path, arguments: argparse.Namespace, one_of_several: bool, removing: bool) -> Recovery | None:
    """Recovers one run; `None`, and a line that says why, if that fails and others are left."""
    try:
        with Progress(f"recovering {opening.shown(named)}"):
            return recover(named, arguments.out, force=arguments.force, remove_session=removing)
    except ProfilerStateError as error:
        raise ProfilerStateError(f"{error} (--force --out FILE)") from error
    except OSError as error:
        if arguments.out is None and error.errno in (errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT):
            raise OutputError(error.errno, f"{error.strerror}; --out FILE writes elsewhere", error.filename) from error
        raise
    except FormatError as error:
        if not one_of_several:
            if not isinstance(error, RecoveredError):
                raise
            convert = opening.command("convert", named if named.is_dir() else named.parent, "out.json")
            raise RecoveredError(f"{error}. To convert it: {convert}") from error
        (message if arguments.json else print_result)(f"not recovered: {error}")
    return None


_ENDINGS = (".json", ".pftrace")


def is_trace(path: Path) -> bool:
    """Whether a file is a trace, or the draft of a killed run's trace, by its name."""
    return path.name.removesuffix(PART).removesuffix(".gz").endswith(_ENDINGS)


def rewrite_traces(
    recovery: Recovery, place: Path, living: set[str], print_line: Callable[[str], None]
) -> tuple[list[Path], bool]:
    """Writes the traces of a recovered run anew.

    Args:
        recovery: of the run, with its note.
        place: its directory.
        living: real names of files that other runs still write.
        say: prints what becomes of each.

    Returns:
        The files that were written, and whether each trace is complete now.
    """
    written: list[Path] = []
    complete = True
    note = recovery.note
    for trace in () if note is None else note.traces:
        assert note is not None
        cut = place / trace.file
        if os.path.realpath(cut) in living:
            print_line(f"left as it is: {opening.shown(cut)} is still being written")
            continue
        try:
            if recovery.gap:
                raise FormatError(f"{opening.shown(cut)}: {recovery.gap}, so a new one could have less")
            new = rewrite_trace(trace, place, note.owner, recovery.journal)
        except FileNotFoundError as error:
            print_line(f"not written anew: {error} is not there any more")
        except FormatError as error:
            complete = False
            print_line(f"left as it is: {error}; {_use(cut)}")
        except OutputError as error:
            complete = False
            print_line(f"left as it is: {error}")
        else:
            written += new
            for path in new:
                print_line(f"written anew: {opening.shown(path)}")
    return written, complete


def _use(cut: Path) -> str:
    """Advice for a file that was cut."""
    if cut.name.endswith(PART):
        return "to have a trace of what was recovered, convert the journal"
    return "Perfetto opens it as it is"
