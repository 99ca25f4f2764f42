"""Offline analysis: finds recordings below a path, recovers those of crashed processes, and makes the products."""

from __future__ import annotations

import itertools
import logging
import os
import re
import shutil
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from stepscope.analysis.tables.collectives import CollectiveTable, Key
from stepscope.compat.mindspore.analysis.analysis import (
    Analysis,
    AnalysisRequest,
    WindowAnalysis,
    analyse_window,
    collectives_of,
)
from stepscope.compat.mindspore.analysis.background import analysis_thread
from stepscope.compat.mindspore.analysis.waiting import RankCollectives, fastest_runs
from stepscope.compat.mindspore.errors import (
    NothingToAnalyse,
    ProfilerDirNotFoundException,
    ProfilerRawFileException,
)
from stepscope.compat.mindspore.options.options import ProfilerOptions
from stepscope.compat.mindspore.output_layout import (
    PRODUCTS_OF,
    RAW,
    ascend_directory,
    named_after,
    named_device,
    new_directory,
    window_name,
    write_facts,
)
from stepscope.compat.mindspore.sources.device import DeviceTarget
from stepscope.runtime.errors import FormatError, ProfilerStateError, RecoveredError
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal import segments
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.recovery.journals import choose
from stepscope.runtime.recovery.recover import recover
from stepscope.runtime.session.job import this_host
from stepscope.runtime.session.note import SESSION_FILE, is_note
from stepscope.runtime.windows.window import Window

log = logging.getLogger("stepscope")

EVERYTHING = ProfilerOptions(
    profile_communication=True, data_process=True, profile_memory=True, profile_framework="all", with_stack=True
)
"""Options for a run that `stepscope.mindspore` did not record: all products for which it has data."""

DEPTH = 6
"""Levels of directories below a path that are searched."""


class WindowInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `profiler_info_<rank>.json` that an analysis needs. Fields that are not known are left out."""

    run: str = ""
    window: int = 0
    device_target: str = "CPU"
    device_id: int = 0
    rank_id: str = ""
    rank_size: int = 1
    products_of: str = ""
    options: msgspec.Raw = msgspec.Raw(b"")

    def target(self, rank: int | None) -> DeviceTarget:
        """The device and rank that recorded it; `rank` is that of the journal."""
        own = int(self.rank_id) if self.rank_id.isdecimal() else rank or 0
        return DeviceTarget(device=self.device_target, device_id=self.device_id, rank=own, rank_size=self.rank_size)

    def recorded_with(self) -> ProfilerOptions:
        """The options; the defaults if they are those of another version, and `EVERYTHING` if there are none."""
        if not bytes(self.options):
            return EVERYTHING
        try:
            return msgspec.json.decode(self.options, type=ProfilerOptions)
        except msgspec.MsgspecError:
            return ProfilerOptions()


def analyse_below(path: Path, options: ProfilerOptions, pretty: bool, steps: tuple[int, ...] | None) -> Analysis:
    """Makes the products of every window that is found below a path, newest run first.

    Of the options `data_simplification` and `ascend_names` count, and `rank_id` if they are for an analysis only; all others are as
    recorded.

    Raises:
        ProfilerDirNotFoundException: if there is no such directory.
        NothingToAnalyse: if there is nothing to analyse. A `RuntimeError`.
    """
    if not path.is_dir():
        raise ProfilerDirNotFoundException(f"there is no directory {path}")
    if not analysis_thread.is_current:
        return analysis_thread.submit(lambda: analyse_below(path, options, pretty, steps)).result()
    done: list[WindowAnalysis] = []
    failed: list[str] = []
    places = dict(_below(path, failed))
    rejected = _without_raw(places)
    found: list[_Recorded] = []
    for raw in sorted(_raw_directories(places), key=_modified, reverse=True):
        with _refusals(raw, rejected, failed):
            found.append(_recorded(raw, path, options))
    compared, unknown = _compared(found)
    for recorded, fastest in zip(found, compared, strict=True):
        with _refusals(recorded.raw, rejected, failed):
            done += _analyse_run(recorded, options, pretty, steps, fastest)
    if not done:
        why = "; ".join(rejected + failed) or "no directory in it holds raw data of a recording"
        raise NothingToAnalyse(f"nothing to analyse below {path}: {why}")
    return Analysis.of(done, steps, rejected, failed, [unknown] if unknown else [])


def _below(path: Path, unreadable: list[str], depth: int = DEPTH) -> Iterator[tuple[Path, frozenset[str]]]:
    """A directory and those below it, each with the names in it. Links are not followed; `unreadable` gets the reasons."""
    try:
        with os.scandir(path) as entries:
            found = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    except OSError as error:
        unreadable.append(f"{path} cannot be read: {error.strerror or error}")
        return
    yield path, frozenset(found)
    if depth:
        for name in sorted(name for name, is_directory in found.items() if is_directory):
            yield from _below(path / name, unreadable, depth - 1)


def _modified(path: Path) -> int:
    """Time of a directory's last change, in ns; 0 if it is gone or cannot be read."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _raw_directories(places: Mapping[Path, frozenset[str]]) -> list[Path]:
    """Directories with a journal of a run, or with what a killed run left of one; copies of single windows only where
    the run's own journal is gone."""
    found: list[Path] = []
    copies: list[Path] = []
    for place, names in places.items():
        if "journal" in segments.first_names(names) or any(
            name.startswith(SESSION_FILE) and is_note(place / name) for name in names
        ):
            found.append(place)
        elif "window.journal" in names:
            copies.append(place)
    runs = {_window_directory(place).name for place in found}
    return found + [place for place in copies if _info(_window_directory(place)).run not in runs]


def _without_raw(places: Mapping[Path, frozenset[str]]) -> list[str]:
    """Windows of stepscope, not of MindSpore's own profiler, whose raw data were deleted, with the reasons."""
    return [
        f"{place}: its raw data were deleted when its products were complete (data_simplification)"
        for place, names in places.items()
        if any(fnmatch(name, "profiler_info_*.json") for name in names)
        and RAW not in names
        and (info := _info(place)).run
        and info.window == 0
        and not info.products_of
    ]


def _window_directory(raw: Path) -> Path:
    """The directory of the window that raw data belong to: that which holds `FRAMEWORK`, else the same."""
    return next((place.parent for place in (raw, *raw.parents) if place.name == RAW), raw)


def _info(directory: Path) -> WindowInfo:
    for path in sorted(directory.glob("profiler_info_*.json")):
        try:
            return msgspec.json.decode(path.read_bytes(), type=WindowInfo)
        except (msgspec.MsgspecError, OSError) as error:
            log.warning("%s cannot be read: %s", path, error)
    return WindowInfo()


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a journal, without its events."""

    windows: dict[int, Window | None]
    """Windows by index; `None` for windows that were not closed."""
    rank: int | None
    world_size: int
    """1 if the journal does not have it."""
    began_ns: int
    """Unix time."""
    host: str
    pid: int
    recovered: bool
    """True if the process was killed and the journal was completed."""
    ended: bool
    """True if it was written to its end: windows may be missing after a cut."""


class _Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was found."""

    raw: Path
    journal: Path
    content: _Content
    directory: Path
    """The directory of its first window."""
    info: WindowInfo
    target: DeviceTarget
    options: ProfilerOptions


@contextmanager
def _refusals(raw: Path, rejected: list[str], failed: list[str]) -> Generator[None]:
    """Adds a sentence to one of these lists if the body raises why raw data cannot be analysed."""
    try:
        yield
    except (ProfilerRawFileException, ProfilerStateError) as error:
        rejected.append(f"{raw}: {error}")
    except (FormatError, OSError) as error:
        failed.append(f"{raw}: {error}")


def _recorded(raw: Path, below: Path, options: ProfilerOptions) -> _Recorded:
    journal = _journal(raw)
    content = _content(journal)
    windows = content.windows
    if not windows:
        raise ProfilerRawFileException(f"{journal.name} holds no events of a window")
    directory = _window_directory(raw)
    if content.recovered:
        new = named_after(directory, windows[min(windows)], below)
        journal, directory = new / journal.relative_to(directory), new
    info = _info(directory)
    target = info.target(content.rank)
    if options.analyse_only and target.rank != options.rank_id:
        raise ProfilerRawFileException(f"it is of rank {target.rank}; rank_id={options.rank_id} was asked for")
    return _Recorded(
        raw=raw,
        journal=journal,
        content=content,
        directory=directory,
        info=info,
        target=target,
        options=info.recorded_with(),
    )


def _compared(found: list[_Recorded]) -> tuple[list[dict[Key, int]], str]:
    """See `fastest_runs`."""
    tables: list[RankCollectives] = []
    for each in found:
        table = CollectiveTable()
        if each.options.communication:
            with suppress(FormatError, OSError):  # the analysis of that journal says why
                table = collectives_of(each.journal)
        tables.append(RankCollectives(each.target.rank, each.content.began_ns, table))
    size = max((max(each.target.rank_size, each.content.world_size) for each in found), default=1)
    return fastest_runs(tables, size)


def _analyse_run(
    recorded: _Recorded,
    options: ProfilerOptions,
    pretty: bool,
    steps: tuple[int, ...] | None,
    fastest: Mapping[Key, int],
) -> list[WindowAnalysis]:
    journal, directory, target = recorded.journal, recorded.directory, recorded.target
    windows = recorded.content.windows
    request = AnalysisRequest(
        options=recorded.options,
        target=target,
        pretty=pretty,
        steps=steps,
        fastest=fastest,
        foreign=not recorded.info.run,
    )
    done: list[WindowAnalysis] = []
    for index, window in windows.items():
        if index == min(windows):
            place = directory
        elif recorded.info.run:
            place = _sibling(directory, index, named_device(request.options, target.device))
        else:  # of a run that `stepscope.mindspore` did not record
            place = directory / f"window_{index}"
        if options.ascend_names:
            place = _with_ascend_name(place, recorded, index, window)
        done.append(analyse_window(journal, index if window is None else window, place, request)[0])
    whole = all(each.complete for each in done) and recorded.content.ended
    if options.data_simplification and whole and directory != recorded.raw:
        shutil.rmtree(directory / RAW, ignore_errors=True)
    return done


def _with_ascend_name(place: Path, recorded: _Recorded, index: int, window: Window | None) -> Path:
    """The directory of a window's products with the name by which MindSpore's tools find it."""
    if recorded.info.run:
        return ascend_directory(place)
    content, target = recorded.content, recorded.target
    began_ns = content.began_ns if window is None else window.wall_start_ns
    host = re.sub(r"[^\w.-]", "_", content.host or this_host()).lstrip(".")  # the journal's own text
    name = window_name(host, content.pid, began_ns, "ascend")
    about = {PRODUCTS_OF: place.name, "window": index}
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))  # of windows of the same ms
    made = next(at for at in map(recorded.directory.joinpath, names) if not at.exists() or _info(at).window == index)
    if made.exists():
        return made
    made.mkdir(mode=0o700)
    size = max(target.rank_size, content.world_size)
    write_facts(made, msgspec.structs.replace(target, rank_size=size), about, {}, strategy=False)
    return made


def _sibling(first: Path, window: int, device: str) -> Path:
    """The directory of a later window of a run: the one that was made for it, or a new one."""
    for place in sorted(first.parent.glob("*_ms*")):
        if place != first and place.is_dir():
            info = _info(place)
            if info.run == first.name and info.window == window:
                return place
    return new_directory(first.parent, None, device)


def _journal(raw: Path) -> Path:
    """The journal of a run, recovered if its process was killed.

    Raises:
        ProfilerStateError: if the process still runs.
        FormatError: if there is nothing that can be read.
        ProfilerRawFileException: if there is no journal, or none that can be read.
    """
    single = raw / "window.journal"
    if single.exists():
        return single
    choice = choose(raw, force=False)
    if choice.note is not None:
        try:
            return recover(raw, remove_session=True).journal
        except RecoveredError:
            pass  # what was in memory has been freed since
    if choice.journal is None:
        if choice.missing:
            raise FormatError(f"no journal in {raw} can be used: {'; '.join(choice.missing)}")
        raise ProfilerRawFileException("there is no journal: none was written")
    return choice.journal


def _content(journal: Path) -> _Content:
    windows: dict[int, Window | None] = {}
    with JournalReader(journal) as reader:
        for item in reader:
            if isinstance(item, EventBatch):
                windows.setdefault(item.window, None)
            elif isinstance(item, Window):
                windows[item.index] = item
        run = reader.run
        return _Content(
            windows=dict(sorted(windows.items())),
            rank=None if run is None else run.rank,
            world_size=1 if run is None else run.world_size or 1,
            began_ns=0 if run is None else run.anchor.wall_ns,
            host="" if run is None else run.host,
            pid=0 if run is None else run.pid,
            recovered=reader.recovered is not None,
            ended=reader.end is not None,
        )
