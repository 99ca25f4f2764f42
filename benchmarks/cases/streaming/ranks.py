"""Many ranks that stream to one collector at once: python -m benchmarks.cases.streaming.ranks [--ranks N] [--rate EVENTS] [--seconds N].

One process plays them all, with frames that were prepared, so that it is the collector that is measured. Each does a step a
second; how long it takes until that is shown is measured as well, by listening to live events and, with `--page`, on the page
in a browser.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import random
import statistics
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import uvloop

from benchmarks.cases.streaming import display_delay
from benchmarks.cases.streaming.collecting import Collecting, collecting, payload
from benchmarks.cases.tools.session import scratch

if TYPE_CHECKING:
    from stepscope.runtime.windows.step_facts import Facts

SYNC = b"\xf5rnk"
FRAMES = 2
"""Of events, a second and rank: one for each drain. Exporters send them in one message, and a summary of the steps in another."""


class Delay(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from the sending of a step until it is shown."""

    steps: int
    median: float
    worst: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    ranks: int
    sent: int
    """Events."""
    written: int
    """Events that were confirmed."""
    missing: int
    """Events that are not in the files."""
    seconds: float
    slowest_ack: float
    """Seconds between a message and its confirmation."""
    collector_seconds: float
    """Processor time of the collector."""
    collector_peak_bytes: int
    load_before: float
    """Processes that wanted to run in the minute before."""
    events_delay: Delay
    """Until live events tell of a step."""
    page_delay: Delay | None = None
    """Until the page shows it, of the ranks whose rows are drawn; `None` if no browser looked."""


def run(ranks: int, rate: int, seconds: float, *, browser: str | None = None) -> Result:
    """Streams `rate` events a second, and a step, from each of `ranks` ranks.

    Args:
        ranks: how many.
        rate: events a second and rank.
        seconds: how long.
        browser: path of a Chromium in which the page is looked at meanwhile.
    """
    prepared = payload(max(rate // FRAMES, 1))
    load = os.getloadavg()[0]
    with scratch() as directory, collecting(directory, "--max-streams", str(max(ranks, 4096))) as collector:
        url = collector.url.replace("ws", "http", 1)
        with display_delay.listening(url) as shown:
            page = None if browser is None else display_delay.Page(url, browser)
            before = collector.processor_seconds()
            result, sent = uvloop.run(_stream(collector, ranks, seconds, prepared, before, load, shown))
            if page is not None:
                page.close(min(map(len, sent.values())) - 1)
                result = msgspec.structs.replace(
                    result, page_delay=_delay(display_delay.delays(sent, page.shown, whole=False))
                )
            return result


async def _stream(
    collector: Collecting,
    ranks: int,
    seconds: float,
    prepared: tuple[int, int, bytes],
    before: float,
    load: float,
    shown: display_delay.Shown,
) -> tuple[Result, dict[str, list[float]]]:
    made = [_Rank(number, ranks, collector.url, prepared) for number in range(ranks)]
    start = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for rank in made:
            group.create_task(rank.stream(seconds))
    lasted = time.monotonic() - start
    sent = {f"ranks-{number}of{ranks}": rank.steps_at for number, rank in enumerate(made)}
    while time.monotonic() < start + lasted + display_delay.PATIENCE and not display_delay.complete(sent, shown):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    missing = await asyncio.to_thread(_missing, collector.directory, made, prepared)
    if not display_delay.complete(sent, shown):
        raise RuntimeError("live events did not tell of all steps")
    result = Result(
        ranks=ranks,
        sent=sum(rank.sent for rank in made),
        written=sum(rank.written for rank in made),
        missing=missing,
        seconds=lasted,
        slowest_ack=max(rank.slowest for rank in made),
        collector_seconds=collector.processor_seconds() - before,
        collector_peak_bytes=collector.peak_bytes(),
        load_before=load,
        events_delay=_delay(display_delay.delays(sent, shown, whole=True)),
    )
    return result, sent


def _delay(found: Sequence[float]) -> Delay:
    return Delay(steps=len(found), median=statistics.median(found) if found else 0.0, worst=max(found, default=0.0))


def _missing(directory: Path, made: Sequence[_Rank], prepared: tuple[int, int, bytes]) -> int:
    from stepscope.runtime.journal import format as fmt

    size = len(prepared[2]) + fmt.FRAME_HEADER.size
    missing = 0
    for rank in made:
        there = (directory / "streams" / rank.id / "journal").stat().st_size
        frames = (there - fmt.FILE_HEADER.size - rank.other_bytes) // size
        missing += rank.sent - frames * prepared[0]
    return missing


@functools.cache
def _step(number: int) -> tuple[int, bytes]:
    """A frame's payload of one step of a second, which ends now: (flags, bytes). All ranks send the same."""
    from stepscope.collector.live.stream import STEPS
    from stepscope.runtime import _core
    from stepscope.runtime.events.record import Kind, empty_block
    from stepscope.runtime.journal import format as fmt

    events = empty_block(1)
    events["kind"], events["step"] = int(Kind.SPAN), number
    events["ts"], events["dur"] = time.monotonic_ns() - 10**9, 10**9
    data, _, _ = _core.encode_frames(events, b"", b"sync", int(fmt.FrameType.EVENTS), 0, 0, fmt.source_bytes(STEPS))
    ((_, flags, _, payload),) = fmt.frames_in(data, b"sync")
    return flags, bytes(payload)


@functools.cache
def _facts(number: int) -> Facts:
    """A step of a second, which ends now."""
    from stepscope.runtime.windows.step_facts import FACTS_DTYPE, Phase

    facts: Any = np.zeros(1, FACTS_DTYPE)
    facts["end"], facts["step"] = time.monotonic_ns(), number
    facts["begin"] = facts["end"] - 10**9
    facts["phases"][:, [Phase.FORWARD, Phase.BACKWARD, Phase.COMMUNICATION]] = 3 * 10**8
    return facts  # type: ignore[no-any-return]


@functools.lru_cache(256)
def _summary(number: int, events: int) -> bytes:
    from stepscope.exporters.stream import protocol
    from stepscope.exporters.stream.step_summary import summary_of

    return protocol.encode(summary_of(_facts(number), events=events, lost=0))


class _Rank:
    """One rank: sends at its times, whatever was confirmed by then."""

    def __init__(self, number: int, ranks: int, url: str, prepared: tuple[int, int, bytes]) -> None:
        self.id = uuid.uuid4().hex
        self.sent = self.written = self.other_bytes = 0
        self.slowest = 0.0
        self.steps_at: list[float] = []
        """Unix times at which its steps were sent."""
        self._number, self._ranks, self._url = number, ranks, url
        self._count, self._flags, self._payload = prepared
        self._next = 0
        self._sent_at: dict[int, tuple[float, int]] = {}

    async def stream(self, seconds: float) -> None:
        from websockets.asyncio.client import connect
        from websockets.typing import Subprotocol

        from stepscope.exporters.stream import protocol
        from stepscope.runtime.events.clock import ClockAnchor
        from stepscope.runtime.journal import format as fmt
        from stepscope.runtime.journal.records import RunRecord, encode_record

        record = RunRecord(
            name="ranks", anchor=ClockAnchor.read(), host="simulated", rank=self._number, world_size=self._ranks
        )
        await asyncio.sleep(random.uniform(0, 1.0))  # a thousand handshakes at one moment are another matter
        subprotocols = [Subprotocol(protocol.SUBPROTOCOL)]
        async with connect(
            self._url + protocol.PATH, subprotocols=subprotocols, compression=None, proxy=None, open_timeout=60,
            ping_interval=None,
        ) as socket:  # fmt: skip
            await socket.send(protocol.encode(protocol.Hello(self.id, SYNC, record, summaries=True)))
            welcome, _ = protocol.decode(bytes(await socket.recv(decode=False)))
            assert isinstance(welcome, protocol.Welcome), welcome
            gather = max(round(welcome.gather_ms / 1e3), 1)

            async def send(*parts: tuple[int, int, bytes]) -> None:
                first = self._next
                data = list[bytes]()
                for kind, flags, body in parts:
                    data += map(bytes, fmt.encode_frame(SYNC, kind, self._next, [body], flags))
                    self._next += 1
                    if kind != fmt.FrameType.EVENTS or body is not self._payload:
                        self.other_bytes += len(body) + fmt.FRAME_HEADER.size
                    else:
                        self.sent += self._count
                self._sent_at[self._next] = time.monotonic(), self.sent
                await socket.send(protocol.encode(protocol.Frames(first, len(parts), 0, 20), *data))

            async def confirmed() -> None:
                while self._sent_at or not self._done:
                    header, _ = protocol.decode(bytes(await socket.recv(decode=False)))
                    assert isinstance(header, protocol.Ack), header
                    sent_at, self.written = self._sent_at.pop(header.next)
                    self.slowest = max(self.slowest, time.monotonic() - sent_at)

            self._done = False
            listening = asyncio.ensure_future(confirmed())
            await send((fmt.FrameType.RUN, 0, encode_record(record)))
            begun, turns = time.monotonic(), max(int(seconds), 1)
            frames: list[tuple[int, int, bytes]] = []
            for turn in range(turns):
                await asyncio.sleep(begun + turn - time.monotonic())
                self._done = turn == turns - 1
                self.steps_at.append(time.time())
                await socket.send(_summary(turn, self.sent))
                event = (int(fmt.FrameType.EVENTS), self._flags, self._payload)
                frames += [*[event] * FRAMES, (int(fmt.FrameType.EVENTS), *_step(turn))]
                if (turn + self._number) % gather == 0 or self._done:  # ranks do not send at the same moment
                    await send(*frames)
                    frames.clear()
            await listening


def main() -> int:
    """Runs what the arguments say, and shows what came of it; 1 if anything is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cases.streaming.ranks", description=__doc__)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=1000, help="events a second and rank")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--page", action="store_true", help="look at the page in Chromium meanwhile")
    options = parser.parse_args()
    browser = display_delay.browser() if options.page else None
    if options.page and browser is None:
        parser.error("--page needs Chromium and playwright")
    result = run(options.ranks, options.rate, options.seconds, browser=browser)
    print(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
    return int(result.missing != 0 or result.written != result.sent)


if __name__ == "__main__":
    raise SystemExit(main())
