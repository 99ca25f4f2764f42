"""Many ranks that stream to one collector at once: python -m benchmarks.ranks [--ranks N] [--rate EVENTS] [--seconds N].

One process plays them all, with frames that were prepared, so that it is the collector that is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.collecting import Collecting, collecting, payload
from benchmarks.session import scratch

SYNC = b"\xf5rnk"
MESSAGES = 4
"""A second and rank, as exporters send them."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run."""

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


def run(ranks: int, rate: int, seconds: float) -> Result:
    """Streams `rate` events a second from each of `ranks` ranks."""
    prepared = payload(max(rate // MESSAGES, 1))
    with scratch() as directory, collecting(directory) as collector:
        before = collector.processor_seconds()
        return asyncio.run(_stream(collector, ranks, seconds, prepared, before))


async def _stream(
    collector: Collecting, ranks: int, seconds: float, prepared: tuple[int, int, bytes], before: float
) -> Result:
    made = [_Rank(number, ranks, collector.url, prepared) for number in range(ranks)]
    start = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for rank in made:
            group.create_task(rank.stream(seconds))
    lasted = time.monotonic() - start
    missing = await asyncio.to_thread(_missing, collector.directory, made, prepared)
    return Result(
        ranks=ranks,
        sent=sum(rank.sent for rank in made),
        written=sum(rank.written for rank in made),
        missing=missing,
        seconds=lasted,
        slowest_ack=max(rank.slowest for rank in made),
        collector_seconds=collector.processor_seconds() - before,
        collector_peak_bytes=collector.peak_bytes(),
    )


def _missing(directory: Path, made: Sequence[_Rank], prepared: tuple[int, int, bytes]) -> int:
    from stepscope.runtime.journal import format as fmt

    size = len(prepared[2]) + fmt.FRAME_HEADER.size
    missing = 0
    for rank in made:
        there = (directory / "streams" / rank.id / "journal").stat().st_size
        frames = (there - fmt.FILE_HEADER.size - rank.run_bytes) // size
        missing += rank.sent - frames * prepared[0]
    return missing


class _Rank:
    """One rank: sends at its times, whatever was confirmed by then."""

    def __init__(self, number: int, ranks: int, url: str, prepared: tuple[int, int, bytes]) -> None:
        self.id = uuid.uuid4().hex
        self.sent = self.written = self.run_bytes = 0
        self.slowest = 0.0
        self._number, self._ranks, self._url = number, ranks, url
        self._count, self._flags, self._payload = prepared
        self._next = 0
        self._sent_at: dict[int, float] = {}

    async def stream(self, seconds: float) -> None:
        from websockets.asyncio.client import connect
        from websockets.typing import Subprotocol

        from stepscope.exporters.collector import protocol
        from stepscope.runtime.clock import ClockAnchor
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
            await socket.send(protocol.encode(protocol.Hello(self.id, SYNC, 0, record)))
            await socket.recv()

            async def send(kind: int, flags: int, data: bytes) -> None:
                frame = fmt.encode_frame(SYNC, kind, self._next, [data], flags)
                self._next += 1
                self._sent_at[self._next] = time.monotonic()
                await socket.send(protocol.encode(protocol.Frames(self._next - 1, 1), *map(bytes, frame)))

            async def confirmed() -> None:
                while self.written < self.sent or not self._done:
                    header, _ = protocol.decode(bytes(await socket.recv(decode=False)))
                    assert isinstance(header, protocol.Ack), header
                    self.slowest = max(self.slowest, time.monotonic() - self._sent_at.pop(header.next))
                    self.written = (header.next - 1) * self._count

            self._done = False
            listening = asyncio.ensure_future(confirmed())
            first = encode_record(record)
            self.run_bytes = len(first) + fmt.FRAME_HEADER.size
            await send(fmt.FrameType.RUN, 0, first)
            begun = time.monotonic()
            for turn in range(max(int(seconds * MESSAGES), 1)):
                await asyncio.sleep(begun + turn / MESSAGES - time.monotonic())
                await send(fmt.FrameType.EVENTS, self._flags, self._payload)
                self.sent += self._count
                self._done = turn == max(int(seconds * MESSAGES), 1) - 1
            await listening


def main() -> int:
    """Runs what the arguments say, and shows what came of it; 1 if anything is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=1000, help="events a second and rank")
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    result = run(given.ranks, given.rate, given.seconds)
    print(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
    return int(result.missing != 0 or result.written != result.sent)


if __name__ == "__main__":
    raise SystemExit(main())
