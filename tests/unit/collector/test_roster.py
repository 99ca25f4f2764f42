"""Which processes of NATS a collector remembers."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from nats.js.errors import KeyNotFoundError

from stepscope.exporters.nats.names import Names
from stepscope.exporters.stream import protocol
from tests.support.basics import require
from tests.support.streams import RUN, SYNC

roster: Any = require("stepscope.collector.nats.roster")


class Hellos:
    """A bucket with one value, for whatever key, or none."""

    value = b""
    asked = 0

    async def get(self, key: str) -> Hellos:
        self.asked += 1
        if not self.value:
            raise KeyNotFoundError
        return self


async def test_one_job_does_not_displace_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the job that has ever new processes the oldest are forgotten, and counted; the last are there."""
    monkeypatch.setattr(roster, "MAX_PROCESSES", 64)
    names, forgotten = Names("vision"), list[int]()
    hellos = Hellos()
    known = roster.Roster(None, names, hellos, None, forgotten.append)

    async def say(number: int, job: str) -> str:
        run, stream = msgspec.structs.replace(RUN, job=job), f"{number:032x}"
        key = names.of(run, stream).key
        hellos.value = protocol.encode(protocol.Hello(stream, SYNC, 0, run))
        assert (await known.process(key)).hello.stream == stream
        return key

    honest = {await say(number, "honest") for number in range(20)}
    flood = [await say(number, "flood") for number in range(1000, 3000)]
    assert honest < known.processes.keys() and len(known.processes) <= 64
    assert set(flood[-30:]) < known.processes.keys()
    assert len(known.processes) + sum(forgotten) == 2020
    again = await say(1000, "flood")
    await say(1000, "flood")
    assert [*known.processes][-1] == again
    jobs = [await say(number, f"job{number}") for number in range(200)]
    assert set(jobs[-30:]) < known.processes.keys()


async def test_processes_that_are_not_there_keep_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is looked up once in a while, and however many there are, others are found."""
    monkeypatch.setattr(roster, "MAX_SEARCHES", 4)
    monkeypatch.setattr(roster, "MAX_ABSENT", 8)
    names, found = Names("vision"), list[Any]()
    hellos = Hellos()
    known = roster.Roster(None, names, hellos, None)
    for number in range(6):
        for _ in range(3):
            known.search(f"job.{number}", found.append)
        await asyncio.sleep(0.01)
    assert found == [None] * 6 == [None] * hellos.asked
    hellos.value = protocol.encode(protocol.Hello("a" * 32, SYNC, 0, RUN))
    assert known.search(names.of(RUN, "a" * 32).key, found.append)
    await asyncio.sleep(0.01)
    assert found[-1].hello.stream == "a" * 32 and hellos.asked == 7
