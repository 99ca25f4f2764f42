"""Faults of files: cut, damaged, removed and replaced."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from hashlib import blake2b
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import anyio
import msgspec

import stepscope
from stepscope.exporters.base import EventBatch, Exporter
from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.specimens import run_in, window_of
from stepscope.exporters.tensorboard import TensorBoardExporter
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import Damage, FrameReader
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.replay import replay_into, run_of
from tests.stress.torture.fault import Fault, Outcome
from tests.support.journals import batch_with_arguments, frame_borders, write_journal

SWEPT = 1 << 16
"""Bytes at the end of a file that are cut off one by one. Samples that are swept are larger."""

MEMORY = Path("/dev/shm")
"""Where files that are cut are: there are many of them."""

GZIP = b"\x1f\x8b"
FAMILY = "files"
WORKERS = 2


def sample(count: int, each: int, noise: int = 0) -> list[EventBatch]:
    """Batches of spans with arguments, in windows of four; each span has so many bytes that do not compress."""
    chance = random.Random(count)
    return [
        batch_with_arguments(
            [f"span {index % 7}" for index in range(each)],
            [
                {"number": at * each + index, "text": "ü\n" * (index % 9) + chance.randbytes(noise).hex()}
                for index in range(each)
            ],
            window=at // 4,
            start_ns=1_000_000 * (at + 1),
        )
        for at in range(count)
    ]


# cut


def journal_sweep(place: Path, cuts: Iterable[int]) -> Outcome:
    """A journal that is cut: every whole frame is read, and nothing else; what is read becomes JSON.

    Rests of which the same frames are read become the same JSON: that is made once, and anew next to the ends of frames.
    """
    path = write_journal(place / f"journal-{os.getpid()}", sample(9, 96, noise=96))
    data = path.read_bytes()
    borders = frame_borders(data)
    frames = zip(borders, borders[1:], strict=False)
    counts = [(end, _events_at(data, at)) for at, end in frames if data[at + 4] == fmt.FrameType.EVENTS]
    near = {border + by for border in borders for by in range(-2, 3)}
    total = Outcome(tried=0)
    converted: dict[bytes, bool] = {}
    for cut in lengths(data, cuts):
        os.truncate(path, cut)
        reader = FrameReader(path)
        exported = 0
        read = blake2b()
        while (frame := reader.next()) is not None:
            read.update(repr((*frame[:2], len(frame[2]))).encode() + bytes(frame[2]))
            exported += _events_at(frame[2]) if frame[0] == fmt.FrameType.EVENTS else 0
        reader.close()
        problems: list[str] = []
        whole = max((border for border in borders if border <= cut), default=0)
        if reader.damage != Damage(torn_bytes=cut - whole):
            problems.append(f"cut at {cut}: {reader.damage}")
        if cut in near or read.digest() not in converted:
            converted[read.digest()] = _converts(path, place, exported)
        if not converted[read.digest()]:
            problems.append(f"cut at {cut}: it does not convert to JSON")
        produced = sum(count for end, count in counts if end <= cut)
        total += Outcome(produced=produced, exported=exported, problems=tuple(problems))
    return total


def _events_at(data: bytes, frame: int = -fmt.FRAME_HEADER.size) -> int:
    return int(fmt.EVENTS_HEADER.unpack_from(data, frame + fmt.FRAME_HEADER.size)[3])


def _converts(path: Path, place: Path, events: int) -> bool:
    target = place / f"converted-{os.getpid()}.json"

    async def replay() -> None:
        with JournalReader(path) as reader:
            await replay_into(reader, ChromeTraceExporter(target), run_of(reader, place))

    anyio.run(replay)
    return spans_in(target.read_bytes()) == events


def trace_sweep(exporter: Callable[[Path], Exporter], place: Path, cuts: Iterable[int]) -> Outcome:
    """A trace that is cut: a reader that takes what is there, as viewers do, finds every whole event."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else place) as home:
        source = write_trace(exporter(Path(home) / "trace"), Path(home) / "trace", sample(4, 126))
        data = source.read_bytes()
    total = Outcome(tried=0)
    for cut in lengths(data, cuts):
        # Of a compressed file a piece is there or not; what there is to find is what any reader of gzip finds.
        text = zlib.decompressobj(31).decompress(data[:cut]) if data.startswith(GZIP) else data[:cut]
        produced = sum(line.startswith(b'{"ph":"X"') for line in text.split(b"\n")[:-1])
        try:
            exported = spans_in(text.rpartition(b"\n")[0].rstrip(b"],\n") + b"]") if produced else 0
            total += Outcome(produced=produced, exported=exported)
        except msgspec.DecodeError as error:
            total += Outcome(produced=produced, problems=(f"cut at {cut}: {error!r}",))
    return total


def lengths(data: bytes, cuts: Iterable[int]) -> list[int]:
    """How long a file is when so many bytes are cut off, each once, from long to short; of a small file fewer are cut."""
    return sorted({len(data) - cut % (len(data) + 1) for cut in cuts}, reverse=True)


def spans_in(trace: bytes) -> int:
    """Spans of a Chrome trace that is JSON; raises if it is not."""
    decoded: Any = msgspec.json.decode(trace)
    events: list[dict[str, Any]] = decoded["traceEvents"] if trace.startswith(b"{") else decoded
    return sum(event["ph"] == "X" for event in events)


def write_trace(exporter: Exporter, home: Path, batches: list[EventBatch]) -> Path:
    """Plays batches into an exporter; returns the one file that it made."""
    home.mkdir(parents=True)

    async def play() -> None:
        await exporter.open(run_in(home))
        for batch in batches:
            await exporter.export(batch)
        await exporter.close_window(window_of(0, batches[-1]))
        await exporter.aclose()

    anyio.run(play)
    (made,) = (path for path in home.iterdir() if path.is_file())
    return made


def sweep(trial: Callable[[Path, Iterable[int]], Outcome], some: int, place: Path, seed: int) -> Outcome:
    """Cuts off 0 to 65,536 bytes: any number, or 100 numbers drawn by the seed. Whole frames or events come back."""
    if some:
        return trial(place, random.Random(seed).sample(range(SWEPT + 1), some))
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as workers:
        parts = [range(worker, SWEPT + 1, WORKERS) for worker in range(WORKERS)]
        outcome = sum(workers.map(partial(trial, place), parts), Outcome(tried=0))
    problems = () if outcome.tried == SWEPT + 1 else (f"the sample is too small: {outcome.tried:,} lengths",)
    return outcome + Outcome(tried=0, problems=problems)


# damaged


def damaged(data: bytes, chance: random.Random) -> bytes:
    """The same with a hole, a flipped bit, a tail that is there twice, or a second file behind it."""
    made = bytearray(data)
    at = chance.randrange(len(made))
    match chance.randrange(5):
        case 0:
            size = chance.choice([1, 100, 4096, 1 << 20])
            made[at : at + size] = bytes(size)
        case 1:
            made[at] ^= 1 << chance.randrange(8)
        case 2:
            made += made[at:]
        case 3:
            made += data
        case _:
            del made[at : at + chance.choice([1, 50, 5000])]
    return bytes(made)


def damaged_journal(place: Path, seed: int) -> Outcome:
    """A journal that is damaged anywhere: no event is invented, all frames that are whole come back."""
    chance = random.Random(seed)
    path = write_journal(place / "journal", sample(9, 20))
    data = path.read_bytes()
    borders = frame_borders(data)
    frames = [data[at:end] for at, end in zip(borders, borders[1:], strict=False)]
    made = damaged(data, chance)
    path.write_bytes(made)
    # Frames carry their number, and the mark of their file: whole ones are whole wherever they are.
    whole = sum(made.count(frame) * _events_at(frame, 0) for frame in frames if frame[4] == fmt.FrameType.EVENTS)
    try:
        with JournalReader(path) as reader:
            exported = sum(len(item) for item in reader if isinstance(item, EventBatch))
    except FormatError as error:
        # Nothing is known of a file whose first two marks are gone.
        beginning = fmt.FILE_HEADER.size + fmt.FRAME_HEADER.size
        problems = () if made[:beginning] != data[:beginning] else (str(error),)
        return Outcome(produced=whole, dropped=whole, problems=problems)
    return Outcome(produced=whole, exported=exported)


# removed and replaced


def vanish(deed: Callable[[Path], object], place: Path, seed: int) -> Outcome:
    """Something happens to the files of a run between two windows, or within one: what was in them counts as dropped, what
    counts as exported is in the files that are there in the end, and nothing of others is touched."""
    run = place / "run"
    produced = blocked = 0
    traced = stepscope.trace(
        output_dir=run,
        schedule=stepscope.schedule(wait=0, warmup=0, active=4),
        exporters=[ChromeTraceExporter(run / "trace.json"), TensorBoardExporter(run / "tb", "worker")],
        options=stepscope.Options(session_dir=str(place)),
    )
    with traced:
        for step in range(12):
            for _ in range(20):
                with stepscope.span("vanish"):
                    produced += 1
            if step == 1 + seed % 2:
                traced.flush()
                deed(run)
            began = time.monotonic_ns()
            traced.step()
            blocked = max(blocked, time.monotonic_ns() - began)
    statistics = traced.statistics().pipeline
    assert statistics is not None
    problems = [f"{each.name}: no error" for each in statistics.exporters if not each.errors]
    problems += [f"{each.name}: {each.ledger}" for each in statistics.exporters[:2] if each.ledger.exported]
    theirs = [path for path in (place / "precious", run / "journal", run / "trace.json") if path.exists()]
    problems += [f"{path} was written" for path in theirs if path.read_text() not in ("other", "precious")]
    # Windows of four steps, 20 spans each; the first one's file was deleted.
    found = sum(path.read_bytes().count(b'"name":"vanish"') for path in run.glob("tb/*.json"))
    board = statistics.exporters[2].ledger
    if found != 160 or not board.dropped.get("deleted") or board.in_flight:
        problems.append(f"{found} spans of the other windows are there: {board}")
    return Outcome(
        produced=produced, exported=found, dropped=produced - found, blocked_ns=blocked, problems=tuple(problems)
    )


def remove(run: Path) -> None:
    """The directory of the run and all in it."""
    shutil.rmtree(run)


def delete(run: Path) -> None:
    """The files that are being written."""
    for path in [run / "journal", run / "trace.json", *run.glob("tb/*.part")]:
        path.unlink()


def replace(run: Path) -> None:
    """Another file takes the name of each."""
    for path in [run / "journal", run / "trace.json", *run.glob("tb/*.part")]:
        other = path.with_name("other")
        other.write_text("other")
        other.replace(path)


def plant(run: Path) -> None:
    """A link to somewhere else takes the name of each."""
    target = run.parent / "precious"
    target.write_text("precious")
    for path in [run / "journal", run / "trace.json", *run.glob("tb/*.part")]:
        path.unlink()
        path.symlink_to(target)


def plain(home: Path) -> Exporter:
    """Array form."""
    return ChromeTraceExporter(home / "trace.json")


def zipped(home: Path) -> Exporter:
    """Array form, gzip under a name that does not say so."""
    return ChromeTraceExporter(home / "trace.json", gzip=True)


FAULTS = (
    *(
        Fault(family=FAMILY, name=f"{name} cut at every byte of its last 64 KiB", trial=trial, trials=1, short=0)
        for name, trial in (
            ("journal", partial(sweep, journal_sweep, 0)),
            ("Chrome trace", partial(sweep, partial(trace_sweep, plain), 0)),
        )
    ),
    *(
        Fault(family=FAMILY, name=f"{name} cut at random bytes", trial=partial(sweep, trial, 100), trials=4, short=1)
        for name, trial in (
            ("journal", journal_sweep),
            ("Chrome trace", partial(trace_sweep, plain)),
            ("gzip trace", partial(trace_sweep, zipped)),
        )
    ),
    *(
        Fault(family=FAMILY, name=name, trial=partial(vanish, deed), trials=4)
        for name, deed in (
            ("directory of the run removed", remove),
            ("files being written deleted", delete),
            ("files being written replaced", replace),
            ("links planted in their place", plant),
        )
    ),
    Fault(family=FAMILY, name="journal damaged", trial=damaged_journal, trials=100, short=10, least=20),
)
