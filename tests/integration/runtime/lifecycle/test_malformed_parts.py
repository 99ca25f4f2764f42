"""A value of a wrong form from a part is this part's error, and costs the others nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepscope as sc
from stepscope.runtime.errors import BackendError, TriggerError
from stepscope.runtime.events import clock
from stepscope.runtime.events.record import Block, EventBatch, Kind, empty_block
from stepscope.runtime.schedule.action import ProfilerAction
from tests.support.flight_recording import Profile
from tests.support.journals import events_of

pytestmark = pytest.mark.parametrize("loop", ["asyncio", "uvloop"], indirect=True)

STEPS = 4


@pytest.fixture
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind of loop that the runtime gets."""
    if request.param == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)


class Unspeakable(str):
    """Text that cannot be had."""

    def __str__(self) -> str:
        raise SystemExit("no words")

    def __getitem__(self, key: Any) -> str:
        raise SystemExit("no parts")


class Careless:
    """A backend that calls its sink as it should not, at every change."""

    name, thread_bound = "careless", False

    def __init__(self, call: Callable[[Any], object] = lambda _: None, derived: object = None) -> None:
        self._call, self._derived = call, derived

    def open(self, sink: sc.backends.Sink) -> None:
        self._sink = sink

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        self._sink.watermark(at)
        self._call(self._sink)

    def derive(self, batch: EventBatch) -> Any:
        """Returns the value of the constructor."""
        return self._derived

    async def aclose(self) -> None:
        self._sink.watermark(clock.now())

    def report(self) -> sc.backends.BackendReport:
        return sc.backends.BackendReport()


class Misleading:
    """A trigger that finds the same at every look."""

    name = "misleading"

    def __init__(self, *found: Any) -> None:
        self._found = found

    def evaluator(self) -> Misleading:
        """Itself."""
        return self

    def look(self, news: sc.triggers.News) -> Sequence[sc.triggers.Finding]:
        """Returns the value of the constructor."""
        return self._found


def finding(**fields: Any) -> sc.triggers.Finding:
    """A finding with fields of any kind."""
    values: dict[str, Any] = {"at": clock.now(), **fields}
    return sc.triggers.Finding(**values)


def events() -> Block:
    """A block of two events that are in order."""
    block = empty_block(2)
    block["ts"], block["kind"] = clock.now(), Kind.INSTANT
    return block


CALLS: dict[str, Callable[[Any], object]] = {
    "watermark None": lambda sink: sink.watermark(None),
    "watermark text": lambda sink: sink.watermark("12"),
    "watermark nan": lambda sink: sink.watermark(float("nan")),
    "watermark inf": lambda sink: sink.watermark(float("inf")),
    "watermark wide": lambda sink: sink.watermark(1 << 63),
    "dropped None": lambda sink: sink.dropped(None, "source", 0),
    "dropped less": lambda sink: sink.dropped(-1, "source", 0),
    "dropped why": lambda sink: sink.dropped(1, ["source"], 0),
    "dropped when": lambda sink: sink.dropped(1, "source", None),
    "deliver list": lambda sink: sink.deliver([events()]),
    "deliver dtype": lambda sink: sink.deliver(np.zeros(2)),
    "deliver table": lambda sink: sink.deliver(events().reshape(1, 2)),
    "deliver one": lambda sink: sink.deliver(events()[0]),
    "deliver heap": lambda sink: sink.deliver(events(), None),
    "deliver text": lambda sink: sink.deliver(events(), "arguments"),
    "deliver until": lambda sink: sink.deliver(events(), watermark="now"),
}
DERIVED: dict[str, object] = {
    "derived number": 5,
    "derived list": [1],
    "derived dtype": np.zeros(2),
    "derived table": empty_block(4).reshape(2, 2),
    "derived none": empty_block(1).reshape(()),
}
FOUND: dict[str, Callable[[], object]] = {
    "found None": lambda: None,
    "found text": lambda: "slow",
    "found severity": lambda: finding(severity="high"),
    "found severity wide": lambda: finding(severity=1 << 2000),
    "found at": lambda: finding(at=None),
    "found at wide": lambda: finding(at=-(1 << 64)),
    "found text of none": lambda: finding(text=Unspeakable("a")),
    "found value": lambda: finding(value=Unspeakable("a")),
    "found at once": lambda: finding(at_once=np.zeros(2)),
}


def careless(directory: Path) -> dict[str, sc.Profiler]:
    """Profilers each of which has a part that gives something malformed."""
    bad: dict[str, sc.Profiler] = {}
    for name, call in CALLS.items():
        bad[name] = sc.trace(backends=[Careless(call)], output_dir=directory / name)
    for name, derived in DERIVED.items():
        bad[name] = sc.trace(backends=[Careless(derived=derived)], output_dir=directory / name)
    for name, make in FOUND.items():
        recorder = sc.FlightRecorder(steps=2, triggers=(Misleading(make()),))
        bad[name] = sc.trace(keep_last=recorder, output_dir=directory / name)
    return bad


def marked(journal: Path) -> list[str]:
    """The instants that a journal has."""
    return [row[2] for row in events_of(journal) if row[-2] == Kind.INSTANT]


def stored_errors(profiler: sc.Profiler) -> list[Exception]:
    """The errors that a profiler has stored."""
    with pytest.raises(ExceptionGroup) as caught:
        profiler.raise_errors()
    return list(caught.value.exceptions)


def test_malformed_data(loop: None, tmp_path: Path) -> None:
    """It is an error of the part that returned it, which is named; another profiler flushes, and has everything."""
    bad = careless(tmp_path)
    good = sc.trace(output_dir=tmp_path / "good")
    profilers = [*bad.values(), good]
    for profiler in profilers:
        profiler.start()
    for step in range(STEPS):
        sc.instant(f"at {step}")
        for profiler in profilers:
            profiler.step()
        for profiler in profilers:
            assert profiler.flush(30)
    for name, profiler in bad.items():
        profiler.close()
        expected = TriggerError if name.startswith("found") else BackendError
        errors = stored_errors(profiler)
        assert {type(error) for error in errors} == {expected}, name
        assert any("failed" in note for note in profiler.diagnostics()), name
        assert not profiler.audit(), name
    sc.instant("after")
    assert good.flush(30)
    good.close()
    good.raise_errors()
    assert not good.audit() and not good.diagnostics()
    assert marked(good.output.path / "journal") == [*(f"at {step}" for step in range(STEPS)), "after"]


def test_numbers_of_other_kinds(loop: None, tmp_path: Path) -> None:
    """Numbers of numpy are numbers, and so are floats: each is accepted."""

    def call(sink: Any) -> None:
        now = np.int64(clock.now())
        assert sink.deliver(events(), watermark=now) == 2
        sink.dropped(np.uint8(3), "source", float(now))
        sink.watermark(float(now))

    with sc.trace(backends=[Careless(call)], output_dir=tmp_path) as profiler:
        profiler.step()
    profiler.raise_errors()
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    assert pipeline.windows.dropped["careless"] == {"source": 6}


def test_findings_of_other_kinds(loop: None, tmp_path: Path) -> None:
    """A finding is made of what its fields say; text and value are cut."""
    found = finding(at=np.float64(clock.now()), severity=np.float32(2), text=12 * "long text " * 100, value=(1, 2))
    profile = Profile(tmp_path, triggers=(Misleading(found),))
    with profile.profiler:
        profile.steps(2)
        assert profile.windows
    profile.profiler.raise_errors()
    facts = profile.facts(0)
    assert (facts["value"], len(facts["text"])) == ([1, 2], 1000)
