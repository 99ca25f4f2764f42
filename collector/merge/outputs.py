"""Formats that a merge can be written in."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio.to_thread
import msgspec

from stepscope.collector.live.verdicts import Judge
from stepscope.collector.merge.merge import Merge, Progress
from stepscope.collector.merge.plan import Selection, plan, wanted
from stepscope.collector.merge.report import MergeReport
from stepscope.collector.merge.sources import gather
from stepscope.collector.runs.job import Job, Member, chosen_job
from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.files.output import check_directory
from stepscope.exporters.tensorboard import TensorBoardExporter
from stepscope.runtime.errors import FormatError, OutputError
from stepscope.runtime.export.exporter import Exporter
from stepscope.runtime.export.formats import exporter_for, writing

DIRECTORIES = {
    "hta": "a Chrome trace for each rank, with distributedInfo: Holistic Trace Analysis",
    "tensorboard": "a directory for each window with a file for each rank: TensorBoard's Distributed view",
}
"""Formats that take a directory; all others are files, of any format that `stepscope convert` knows."""


async def write_merged(
    sources: Sequence[Path],
    target: Path,
    *,
    format: str | None = None,
    job: str | None = None,
    selection: Selection | None = None,
    progress: Progress = lambda events: None,
    judge: Judge | None = None,
) -> MergeReport:
    """Merges what directories hold of a job into a file or a directory.

    A directory appears as a whole, or what it lacks is added to it: each window of TensorBoard's, each file of HTA's,
    gets its name when it is complete.

    Args:
        sources: a collector's directory, or any with journals below it, or journals.
        target: what to write; a file is replaced.
        format: name of a format, if the target's ending does not say it.
        job: which job, if there are several.
        selection: what to merge; by default everything.
        progress: called with the number of events written so far.
        judge: says what is slow in the merged steps; default: the report does not say it.

    Raises:
        FormatError: if there is nothing to merge; says why journals cannot be used.
        ValueError: if no format is known by that name or ending; lists those that are.
        OSError: if a stream cannot be read, or the target not written.
    """
    directory = format in DIRECTORIES
    if not directory:
        exporter_for(target, format)
    with contextlib.ExitStack() as stack:

        def room() -> Path:
            return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent)))

        merge = await anyio.to_thread.run_sync(
            prepare, sources, target, job, selection or Selection(), progress, room, judge
        )
        if not directory:
            exporter = stack.enter_context(writing(target, format))
            report = await merge.together(exporter)
            written = getattr(exporter, "path", target)  # a journal does not replace another
            return report if written == target else msgspec.structs.replace(report, written=str(written))
        check_directory(target)
        staged = room()
        report = await merge.apart(lambda rank, member: _exporter(format or "", staged, member))
        await anyio.to_thread.run_sync(_publish, staged, target)
    return report


def prepare(
    sources: Sequence[Path],
    target: Path,
    job: str | None,
    selection: Selection,
    progress: Progress,
    room: Callable[[], Path],
    judge: Judge | None = None,
) -> Merge:
    """Reads what there is, and plans the merge. Arguments and errors as for `write_merged`."""
    found = gather(sources, room, wanted(selection))
    if found.unreadable and not found.recordings:
        raise FormatError("; ".join(map(str, found.unreadable[:3])))
    name, chosen = chosen_job(found.recordings, job, sources)
    described = Job(name, chosen)
    if selection.window is not None and any(member.start for member in described.members):
        # A start that is not the first counts its windows otherwise than the job, so the clocks were read near other windows.
        found = gather(sources, room)
        name, chosen = chosen_job(found.recordings, job, sources)
        described = Job(name, chosen)
    windows = plan(described, selection)
    directory = target.absolute().parent
    return Merge(described, windows, directory, progress, unreadable=found.unreadable, notes=found.notes, judge=judge)


def _exporter(format: str, directory: Path, member: Member) -> Exporter:
    if format == "hta":
        name = f"rank_{member.rank}" if member.rank is not None else f"process_{member.number}"
        return ChromeTraceExporter(directory / f"{name}.json", form="object")
    # The plugin groups workers by the part before the last underscore, and numbers them by what follows.
    host = re.sub(r"[/\\\0]", "_", member.recording.run.host)[:64] or "host"
    number = member.rank if member.rank is not None else member.recording.run.pid
    return TensorBoardExporter(directory, f"{host}_{number}", layout="runs")


def _publish(staged: Path, target: Path) -> None:
    """Moves what is complete to its place; a window's directory is replaced as a whole."""
    for entry in sorted(os.scandir(staged), key=lambda entry: entry.name):
        place = target / entry.name
        try:
            if entry.is_dir() and place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            os.replace(entry.path, place)
        except OSError as error:
            raise OutputError(error.errno, f"cannot write: {error.strerror}", str(place)) from error
