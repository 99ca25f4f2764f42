"""The traces of killed runs: which there are, and completing them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from stepscope.cli import opening
from stepscope.exporters.repair import repair_chrome
from stepscope.exporters.repair_perfetto import PACKET, repair_perfetto
from stepscope.exporters.rewriting import Repair
from stepscope.exporters.rotation import PART
from stepscope.exporters.salvage import GZIP
from stepscope.runtime.errors import FormatError, OutputError, ProfilerStateError
from stepscope.runtime.recovery.choice import ours
from stepscope.runtime.session import PREFIX, places, runs_of
from stepscope.runtime.session_note import SessionNote, notes_in, read_note, recovered_of

_CHROME, _PERFETTO = ".json", ".pftrace"
TARGETS = ("trace.json", "recovered.json", *(f"recovered-{number}.json" for number in range(2, 100)))
"""Names for what a recovered journal is converted to."""


def is_trace(path: Path) -> bool:
    """Whether a file is a trace, or what a killed process left of one, by its name or its first bytes."""
    if _ending(path):
        return True
    with path.open("rb") as file:
        return file.read(2).startswith((b"[", b"{", PACKET, GZIP))


def _ending(path: Path) -> str:
    """Which of the known endings its name has, if any."""
    name = path.name.removesuffix(PART).removesuffix(".gz")
    return next((ending for ending in (_CHROME, _PERFETTO) if name.endswith(ending)), "")


def _repair(path: Path) -> Repair:
    """Completes a trace, of the format that its name says, else of the one that its content has."""
    if _ending(path) == _PERFETTO:
        return repair_perfetto(path)
    try:
        return repair_chrome(path)
    except FormatError:
        if _ending(path):
            raise
    return repair_perfetto(path)


class Traces:
    """The traces that belong to a run's directory. Says on standard output what becomes of each."""

    def __init__(self) -> None:
        self.torn: list[str] = []
        """Those that were not repaired, and why."""
        self.completed = 0
        """How many had no end."""

    def repair_below(self, directory: Path, living: set[str]) -> None:
        """Completes those in a directory, and below, but for files that runs still write."""
        for path in sorted(directory.rglob("*")):
            if _ending(path) and (path.is_file() or path.is_symlink()):
                if path.is_symlink():
                    print(f"not repaired: {path} is a symbolic link")
                else:
                    self.repair(path, living)

    def repair_noted(self, note: SessionNote, directory: Path, living: set[str]) -> None:
        """Completes those that the run wrote elsewhere, by its note, which is not believed: only the user's own files."""
        for path in map(Path, note.outputs):
            here = path.parent.is_relative_to(directory.resolve())
            if (here and _ending(path)) or not os.path.lexists(path):
                continue
            if not ours(path, note.owner):
                self._leave(f"{path} is no regular file of this user's")
            elif is_trace(path):
                self.repair(path, living)

    def repair(self, path: Path, living: set[str]) -> None:
        """Completes one."""
        if os.path.realpath(path) in living:
            print(f"not repaired: {path} is still being written")
            return
        try:
            repair = _repair(path)
        except FormatError as error:
            print(f"not repaired: {error}")  # not ours: it was not torn by us
        except OutputError as error:
            self._leave(str(error))
        else:
            if repair.lost >= 0:
                self.completed += 1
                print(f"completed {repair.path}, {repair.lost:,} bytes of an unfinished event were cut off")

    def _leave(self, why: str) -> None:
        self.torn.append(why)
        print(f"not repaired: {why}")


def repair_one(path: Path, *, force: bool) -> None:
    """Completes a trace that was named.

    Raises:
        FormatError: if it is none of ours.
        OutputError: if it cannot be read or replaced.
        ProfilerStateError: if its run goes on, unless forced.
    """
    found = _run_of(path)
    if found is not None and found[1].running and not force:
        raise ProfilerStateError(f"process {found[1].pid} still writes {path} (--force)")
    repair = _repair(path)
    if repair.lost < 0:
        print(f"{repair.path} is complete")
    else:
        print(f"completed {repair.path}, {repair.lost:,} bytes of an unfinished event were cut off")
    if found is not None:
        run, recovered = found[0].parent, recovered_of(found[0])
        if recovered.exists():
            print(f"what it lacks is in {opening.shown(recovered)}: {opening.convert(recovered, free_name(TARGETS))}")
        else:
            print(f"what it lacks may be in {opening.shown(run)}: stepscope recover {shlex.quote(opening.shown(run))}")


def _run_of(path: Path) -> tuple[Path, SessionNote] | None:
    """The note of the run that wrote a file, where it is beside the file or its session in the usual place."""
    name = os.path.abspath(path)
    notes = notes_in(path.absolute().parent, [])
    for session in (session for place in places(None) for session in Path(place).glob(f"{PREFIX}*")):
        try:
            notes += [(run, note) for run in runs_of(session) if (note := read_note(run, [])) is not None]
        except (OSError, ValueError):
            continue  # another user's, or removed meanwhile
    return next(((run, note) for run, note in notes if name in note.outputs), None)


def free_name(names: Iterable[str]) -> str:
    """The first of the names that no file has here; the last one if all are taken."""
    last = ""
    for last in names:
        if not os.path.lexists(last):
            break
    return last
