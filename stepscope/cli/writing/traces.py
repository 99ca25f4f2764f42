"""The traces of killed runs: those that the runs' notes name are written anew from the recovered journals."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from stepscope.cli.common import opening
from stepscope.exporters.files.rewriting import rewrite_trace
from stepscope.exporters.files.rotation import PART
from stepscope.runtime.errors import FormatError, OutputError
from stepscope.runtime.recovery.recover import Recovery
from stepscope.runtime.session.note import TraceNote, notes_in

_ENDINGS = (".json", ".pftrace")


def is_trace(path: Path) -> bool:
    """True if a file is a trace, or what a killed process left of one, by its name."""
    return path.name.removesuffix(PART).removesuffix(".gz").endswith(_ENDINGS)


def rewrite_traces(
    recovery: Recovery, place: Path, living: set[str], say: Callable[[str], None]
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
    for trace in () if recovery.note is None else recovery.note.traces:
        cut = place / trace.file
        if os.path.realpath(cut) in living:
            say(f"left as it is: {opening.shown(cut)} is still being written")
        elif recovery.gap:
            complete = False
            say(f"left as it is: {opening.shown(cut)}: {recovery.gap}, so a new one could have less; {_use(cut)}")
        else:
            complete = _rewrite(recovery, place, trace, cut, written, say) and complete
    return written, complete


def _rewrite(
    recovery: Recovery, place: Path, trace: TraceNote, cut: Path, written: list[Path], say: Callable[[str], None]
) -> bool:
    """Writes one trace, adds its files to those written, and returns whether it is complete."""
    assert recovery.note is not None
    try:
        for path in rewrite_trace(trace, place, recovery.note.owner, recovery.journal):
            say(f"written anew: {opening.shown(path)}")
            written.append(path)
    except FileNotFoundError as error:
        say(f"not written anew: {error} is not there any more")
    except FormatError as error:
        say(f"left as it is: {error}; {_use(cut)}")
        return False
    except OutputError as error:
        say(f"left as it is: {error}")
        return False
    return True


def _use(cut: Path) -> str:
    """Advice for a file that was cut."""
    if cut.name.endswith(PART):
        return "to have a trace of what was recovered, convert the journal"
    return "Perfetto opens it as it is"


def refuse_trace(path: Path) -> NoReturn:
    """Says what to do with a trace that was named alone.

    Raises:
        FormatError: always.
    """
    place = path.absolute().parent
    run = shlex.quote(opening.shown(place)) if notes_in(place, []) else "RUN"
    raise FormatError(
        f"{path} is a trace, and a run is recovered from its directory. However it was cut, Perfetto opens it as it is if it is "
        f"a .pftrace or Chrome JSON in array form. To recover its run and write it anew: stepscope recover {run}"
    )
