"""Many ranks that stream through NATS, without what they would train: `python -m benchmarks.cases.streaming.nats_ranks --help`.

Measures what collectors spend on thousands of ranks: each rank publishes a message of frames and a summary of its steps a second.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
from nats.aio.client import Client

from stepscope.exporters.nats import layout
from stepscope.exporters.nats.connection import connect
from stepscope.exporters.nats.names import DEFAULT_TEAM, Names
from stepscope.exporters.nats.servers import NatsLimits, Servers
from stepscope.exporters.nats.transport import HELLO_SECONDS
from stepscope.exporters.stream import protocol
from stepscope.exporters.stream.step_summary import STEP_DTYPE, SUMS_DTYPE
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import RunRecord, encode_record

SYNC = b"\xf5nat"
_UNKNOWN = 99
"""Type of frames that every reader skips."""
_STEP_NS = 10_000_000


class Rank:
    """The messages that an exporter sends for one rank.

    Args:
        client: a connection to NATS, which ranks may share.
        names: of the team.
        rank: its number.
        of: number of ranks of the job.
        job: name of the job.
        frame_bytes: size of each frame's payload.
    """

    def __init__(self, client: Client, names: Names, rank: int, of: int, job: str, frame_bytes: int = 400) -> None:
        self._client, self._jetstream, self._team = client, layout.jetstream(client), names
        self._payload = bytes(frame_bytes)
        self._run = RunRecord(
            name="ranks", anchor=ClockAnchor.read(), pid=rank + 1, rank=rank, world_size=of, job=job,
            created_ns=time.time_ns(),
        )  # fmt: skip
        self.stream = uuid.uuid4().hex
        self._names = names.of(self._run, self.stream)
        self.next = 0
        """Number of the next frame."""
        self._position = fmt.FILE_HEADER.size
        self._step = 0
        self._hello_due = 0.0

    async def begin(self) -> None:
        """Says whose stream it is."""
        await layout.put(self._jetstream, self._team.hellos, self._names.key, self._hello())
        await self._publish([(int(fmt.FrameType.RUN), encode_record(self._run))])

    async def publish(self, frames: int) -> None:
        """Publishes a message of frames."""
        await self._publish([(_UNKNOWN, self._payload)] * frames)

    async def end(self) -> None:
        """Publishes the last frame, and a last summary."""
        await self._publish([(int(fmt.FrameType.END), b"")])
        await self.summarize(1, ended=True)

    async def summarize(self, steps: int, *, ended: bool = False) -> None:
        """Publishes a summary of its last steps."""
        packed: Any = np.zeros(steps, STEP_DTYPE)
        packed["duration_ns"] = _STEP_NS
        begin = time.perf_counter_ns() - steps * _STEP_NS
        runs = [protocol.StepRun(0, self._step, begin, packed.tobytes())]
        self._step += steps
        summary = protocol.StepSummary(self.next, 0, 0, runs, np.zeros(1, SUMS_DTYPE).tobytes(), ended=ended)
        if time.monotonic() >= self._hello_due:
            self._hello_due = time.monotonic() + HELLO_SECONDS
            await self._client.publish(self._names.live, self._hello())
        await self._client.publish(self._names.live, protocol.encode(summary))

    def _hello(self) -> bytes:
        return protocol.encode(protocol.Hello(self.stream, SYNC, self._run))

    async def _publish(self, frames: Sequence[tuple[int, bytes]]) -> None:
        data = b"".join(
            bytes(part)
            for number, (kind, payload) in enumerate(frames, self.next)
            for part in fmt.encode_frame(SYNC, kind, number, [payload])
        )
        header = protocol.Frames(self.next, len(frames), 0, self._position)
        await self._jetstream.publish(self._names.frames, protocol.encode(header, data))
        self.next += len(frames)
        self._position += len(data)


async def run(url: str, team: str, ranks: int, seconds: float, *, every: float, steps: int, frames: int) -> None:
    """Streams for so many seconds.

    Args:
        url: of the server.
        team: name of the team.
        ranks: number of ranks.
        seconds: how long.
        every: seconds between two summaries of a rank.
        steps: in each summary.
        frames: that are published with each summary; 0: summaries only.
    """
    names = Names(team)
    clients = [await connect(Servers(url)) for _ in range(min(ranks, 32))]
    try:
        await layout.create(layout.jetstream(clients[0]), names, NatsLimits())
        made = [Rank(clients[number % len(clients)], names, number, ranks, "ranks") for number in range(ranks)]
        end = time.monotonic() + seconds

        async def live(one: Rank) -> None:
            await one.begin()
            await asyncio.sleep(random.uniform(0, every))  # ranks do not publish at the same moment
            while time.monotonic() < end:
                due = time.monotonic() + every
                if frames:
                    await one.publish(frames)
                await one.summarize(steps)
                await asyncio.sleep(due - time.monotonic())
            await one.end()

        began = time.monotonic()
        await asyncio.gather(*map(live, made))
        spent = time.monotonic() - began
        print(f"{ranks} ranks published {sum(one.next for one in made):,} frames in {spent:.1f} s")
    finally:
        for client in clients:
            await client.close()


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="nats://127.0.0.1:4222", help="of the server (default: %(default)s)")
    parser.add_argument("--team", default=DEFAULT_TEAM, help="whose collectors are to take them (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=3000, help="number of ranks (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long they run (default: %(default)s)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two summaries (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1, help="in each summary (default: %(default)s)")
    parser.add_argument("--frames", type=int, default=8, help="with each summary (default: %(default)s)")
    options = parser.parse_args()
    asyncio.run(
        run(
            options.url,
            options.team,
            options.ranks,
            options.seconds,
            every=options.every,
            steps=options.steps,
            frames=options.frames,
        )
    )


if __name__ == "__main__":
    main()
