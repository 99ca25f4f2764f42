"""Which processes of NATS a collector remembers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stepscope.exporters.nats.names import Names
from stepscope.exporters.stream import protocol
from tests.support.basics import require
from tests.support.streams import RUN, SYNC

roster: Any = require("stepscope.collector.nats.roster")


def test_one_job_does_not_displace_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the job that has ever new processes the oldest are forgotten, and counted; the last are there."""
    monkeypatch.setattr(roster, "MAX_PROCESSES", 64)
    names, forgotten = Names("vision"), list[int]()
    known = roster.Roster(None, names, None, None, forgotten.append)

    def say(number: int, job: str) -> str:
        run, stream = msgspec.structs.replace(RUN, job=job), f"{number:032x}"
        key = names.of(run, stream).key
        known.add(key, protocol.Hello(stream, SYNC, run))
        assert known.processes[key].hello.stream == stream
        return key

    honest = {say(number, "honest") for number in range(20)}
    flood = [say(number, "flood") for number in range(1000, 3000)]
    assert honest < known.processes.keys() and len(known.processes) <= 64
    assert set(flood[-30:]) < known.processes.keys()
    assert len(known.processes) + sum(forgotten) == 2020
    again = say(1000, "flood")
    say(1000, "flood")
    assert [*known.processes][-1] == again
    jobs = [say(number, f"job{number}") for number in range(200)]
    assert set(jobs[-30:]) < known.processes.keys()
