"""The conformance suite of exporters: what every exporter must stand, ours and those of others.

async def test_mine(tmp_path):
    await check_exporter(lambda directory: MyExporter(directory / "trace.bin"), tmp_path, read_back=my_reader)
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from stepscope.exporters.base import EventBatch, Exporter, Run, Window
from stepscope.exporters.specimens import ODD_NAMES, batch_of, every_kind, run_in, spans, window_of
from stepscope.runtime import _core
from stepscope.runtime.errors import ClosedError, OutputError
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Kind, empty_block
from stepscope.runtime.settings.arguments import lacking

Factory = Callable[[Path], Exporter]
"""Makes a fresh exporter that writes into a directory, which exists."""
ReadBack = Callable[[Exporter, Path], Iterable[str]]
"""Names of all spans in the output of a closed exporter, in any order. Raises if the output is not well formed."""


class Case(msgspec.Struct, frozen=True):
    """The parts of one check."""

    factory: Factory
    directory: Path
    read_back: ReadBack | None
    writes_files: bool

    def exporter(self) -> Exporter:
        """A fresh exporter."""
        return self.factory(self.directory)

    def run(self) -> Run:
        """A run that writes to the directory."""
        return run_in(self.directory)

    async def export(
        self, *batches: EventBatch, run: Run | None = None, window: Window | None = None, closes: int = 1
    ) -> Exporter:
        """Gives a fresh exporter batches, each with the end of its window.

        Args:
            run: default: that of `run()`.
            window: the end of the windows; default: one that holds the batch.
            closes: how often the exporter is closed.
        """
        exporter = self.exporter()
        await exporter.open(run or self.run())
        for batch in batches:
            await exporter.export(batch)
            await exporter.close_window(window or window_of(batch.window, batch))
        for _ in range(closes):
            await exporter.aclose()
        return exporter

    def expect_spans(
        self, exporter: Exporter, batches: Sequence[EventBatch], perhaps: Sequence[EventBatch] = ()
    ) -> None:
        """Reads the output back and compares the spans in it with those of the batches.

        Args:
            batches: whose spans must be there.
            perhaps: whose spans may be there.
        """
        if self.read_back is None:
            return
        required, allowed = _names(batches), _names([*batches, *perhaps])
        found = Counter(self.read_back(exporter, self.directory))
        _expect(not found - allowed, f"spans that nobody exported: {_shown(found - allowed)}")
        _expect(not required - found, f"spans that are missing: {_shown(required - found)}")


async def check_exporter(
    factory: Factory, tmp_path: Path, read_back: ReadBack | None = None, *, writes_files: bool = True
) -> None:
    """Runs every check, each with a fresh exporter in a directory of its own.

    Args:
        factory: makes the exporter.
        tmp_path: an empty directory.
        read_back: reads spans back; without it only the exporter's behaviour is checked.
        writes_files: false for exporters that write no files, which need not refuse a directory.

    Raises:
        AssertionError: for the first promise that is broken, naming the check.
    """
    for check in CHECKS:
        directory = tmp_path / check.__name__
        directory.mkdir()
        try:
            await check(Case(factory, directory, read_back, writes_files))
        except AssertionError as error:
            raise AssertionError(f"{check.__name__}: {error}") from error


async def follows_the_contract(case: Case) -> None:
    """The exporter has a name and the methods."""
    exporter = case.exporter()
    lacks = lacking(exporter, Exporter)
    _expect(not lacks, f"it lacks {lacks}, see stepscope.exporters.Exporter")
    _expect(isinstance(exporter.name, str) and exporter.name != "", "it has no name")


async def exports_every_event(case: Case) -> None:
    """Two windows, one after the other."""
    batches = [batch_of(spans(["forward", "backward"]), window=window) for window in (0, 1)]
    case.expect_spans(await case.export(*batches), batches)


async def takes_empty_batches(case: Case) -> None:
    """Batches without events, also as the only ones."""
    case.expect_spans(await case.export(batch_of(empty_block())), [])


async def takes_every_kind(case: Case) -> None:
    """All kinds, flags and types of arguments, numbers that JSON lacks, negative and huge times."""
    batch = every_kind()
    case.expect_spans(await case.export(batch), [batch])


async def takes_odd_names(case: Case) -> None:
    """Names that need escaping, cannot be encoded, or are very long; as spans, tracks, sources and metadata."""
    batch = batch_of(spans(ODD_NAMES), source=ODD_NAMES[4])
    batch.events.flags.writeable = True
    for index, name in enumerate(ODD_NAMES):
        batch.events["track"][index] = tracks.new(tracks.TrackKind.THREAD, 1, index, name)
    batch.events.flags.writeable = False
    run = msgspec.structs.replace(case.run(), name=ODD_NAMES[5], metadata=lambda: {name: name for name in ODD_NAMES})
    window = msgspec.structs.replace(window_of(0, batch), profiler=ODD_NAMES[5], diagnostics=ODD_NAMES)
    case.expect_spans(await case.export(batch, run=run, window=window), [batch])


async def takes_many_events(case: Case) -> None:
    """A batch of 50,000 events with arguments."""
    block = spans(["many"] * 50_000)
    args = _core.encode_arguments({"layer": 3, "shape": "[2, 3]"})
    block["args_len"] = len(args)
    batch = batch_of(block, args)
    case.expect_spans(await case.export(batch), [batch])


async def takes_interleaved_windows(case: Case) -> None:
    """Batches of a new window come before the old one is closed."""
    batches = [batch_of(spans([f"window {window}"]), window=window) for window in (0, 1, 0, 2, 1, 2)]
    exporter = case.exporter()
    await exporter.open(case.run())
    for batch in batches:
        await exporter.export(batch)
    for window in (1, 0, 2):
        await exporter.close_window(window_of(window, batches[window]))
    await exporter.aclose()
    case.expect_spans(exporter, batches)


async def closes_without_windows(case: Case) -> None:
    """A run that recorded nothing, and one that ended inside a window."""
    case.expect_spans(await case.export(), [])
    inside = msgspec.structs.replace(case, directory=case.directory / "inside")
    inside.directory.mkdir()
    batch = batch_of(spans(["unfinished"]))
    exporter = inside.exporter()
    await exporter.open(inside.run())
    await exporter.export(batch)
    await exporter.aclose()
    inside.expect_spans(exporter, [batch])


async def closes_twice(case: Case) -> None:
    """A second `aclose` changes nothing."""
    batch = batch_of(spans(["once"]))
    case.expect_spans(await case.export(batch, closes=2), [batch])


async def survives_cancellation(case: Case) -> None:
    """An `export` or `aclose` that is cancelled at any point leaves readable output, with nothing twice."""
    for turns in range(6):
        for method in ("export", "aclose"):
            here = msgspec.structs.replace(case, directory=case.directory / f"{method}-{turns}")
            here.directory.mkdir()
            before, cut = batch_of(spans(["before"])), batch_of(spans(["cut"] * 1000))
            exporter = here.exporter()
            await exporter.open(here.run())
            await exporter.export(before)
            if method == "export":
                await _cancelled_after(exporter.export(cut), turns)
            else:
                await exporter.export(cut)
                await _cancelled_after(exporter.aclose(), turns)
            await exporter.aclose()
            if method == "export" or turns == 0:
                here.expect_spans(exporter, [before], [cut])
            else:
                here.expect_spans(exporter, [], [before, cut])


async def leaves_batches_alone(case: Case) -> None:
    """Batches are shared with other exporters: their arrays are read-only and stay as they are."""
    batch = every_kind()
    events, args = batch.events.tobytes(), bytes(batch.args)
    await case.export(batch)
    _expect(not batch.events.flags.writeable, "the events were made writable")
    _expect(batch.events.tobytes() == events and batch.args == args, "the batch was changed")


async def takes_another_run_whole_or_not(case: Case) -> None:
    """Opened again after `aclose` it refuses with `ClosedError` and writes nothing, or it takes all of the second run.

    Where that goes to the same place it may replace the first, as if it came from another exporter.
    """
    batches = [batch_of(spans([name])) for name in ("the first run", "the second run")]
    exporter = case.exporter()
    for index, batch in enumerate(batches):
        try:
            await exporter.open(case.run())
        except ClosedError:
            _expect(index, "open() raised ClosedError for the first run")
            await exporter.aclose()
            case.expect_spans(exporter, batches[:1])
            return
        await exporter.export(batch)
        await exporter.close_window(window_of(0, batch))
        await exporter.aclose()
    case.expect_spans(exporter, batches[1:], batches[:1])


async def refuses_unusable_places(case: Case) -> None:
    """A directory that cannot be written to is an `OutputError` of `open`."""
    if not case.writes_files:
        return
    obstacle = case.directory / "file"
    obstacle.write_bytes(b"not a directory")
    place = obstacle / "below"
    exporter = case.factory(place)
    try:
        await exporter.open(run_in(place))
    except OutputError:
        return
    await exporter.aclose()
    _expect(False, "open() did not raise OutputError for a directory that cannot exist")


Check = Callable[[Case], Awaitable[None]]
CHECKS: tuple[Check, ...] = (
    follows_the_contract,
    exports_every_event,
    takes_empty_batches,
    takes_every_kind,
    takes_odd_names,
    takes_many_events,
    takes_interleaved_windows,
    closes_without_windows,
    closes_twice,
    survives_cancellation,
    leaves_batches_alone,
    takes_another_run_whole_or_not,
    refuses_unusable_places,
)
"""The checks, in order."""


async def _cancelled_after(call: Awaitable[None], turns: int) -> None:
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return


def _expect(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _names(batches: Sequence[EventBatch]) -> Counter[str]:
    return Counter(
        strings.name_of(event) for batch in batches for event in batch.events[batch.events["kind"] == int(Kind.SPAN)]
    )


def _shown(names: Counter[str]) -> str:
    return ", ".join(f"{count} x {name[:60]!r}" for name, count in names.most_common(5))
