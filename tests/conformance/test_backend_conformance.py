"""Every shipped backend keeps the contract, and the suite finds those that break it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import anyio
import numpy as np
import pytest

from stepscope.backends import TorchBackend
from stepscope.backends.base import Backend
from stepscope.backends.conformance import CHECKS, Case, check_backend, check_block, check_restart, check_window
from stepscope.backends.simulated.scripted import Counter, Deliver, Instant, Raise, ScriptedBackend, Span
from stepscope.backends.simulated.simulated import SimulatedDevice
from stepscope.runtime.events import clock, strings
from stepscope.runtime.events.record import Flag, Kind, empty_block
from stepscope.runtime.events.tracks import TrackKind, new
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.sources.sink import BackendReport, Sink
from tests.support.basics import require
from tests.support.messages import refused

NONE, WARMUP, RECORD, SAVE = ProfilerAction
SCRIPT = (
    Deliver([Span("b", 2000, 500, arguments={"x": 1}), Span("a", 0, 1000)], on="start"),
    Deliver([Counter("loss", 5, 1.5), Instant("mark", 6)]),
)

CASES: dict[str, Case] = {
    "scripted": Case(lambda: ScriptedBackend(SCRIPT)),
    "scripted, thread-bound": Case(lambda: ScriptedBackend(SCRIPT, thread_bound=True)),
    "scripted, empty": Case(ScriptedBackend, silent=True),
    "simulated": Case(lambda: SimulatedDevice(flush_delay=0.02)),
    "simulated, foreign clock": Case(lambda: SimulatedDevice(flush_delay=0.01, clock_skew=-(10**17), clock_drift=400)),
    "simulated, prompt and lossy": Case(lambda: SimulatedDevice(flush_delay=0, drop=0.3)),
    "simulated, slow": Case(lambda: SimulatedDevice(flush_delay=0.3, kernels_per_second=1000)),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_shipped_backends_keep_the_contract(case: Case, check: Callable[[Case], None]) -> None:
    """Each promise of the contract, for each backend that ships."""
    check(case)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("mode", ["stream", "kineto"])
def test_torch_keeps_the_contract(mode: Any, check: Callable[[Case], None]) -> None:
    """Both modes; what stream mode records goes through the rings, so its backend itself has nothing to deliver."""
    torch = require("torch")
    operand = torch.ones(16, 16)

    def exercise() -> None:
        for _ in range(3):
            torch.mm(operand, operand).sum()

    check(Case(lambda: TorchBackend(mode=mode), exercise, deadline=20, silent=mode == "stream"))


class Faulty(ScriptedBackend):
    """A backend with one fault, chosen by name."""

    def __init__(self, fault: str) -> None:
        super().__init__(SCRIPT, name=fault)
        self.fault = fault
        self.sink: Sink | None = None
        self.seen = 0

    def open(self, sink: Sink) -> None:
        super().open(sink)
        self.sink = sink
        if self.fault == "records unasked":
            self._deliver(clock.now())
        if self.fault == "opens once":
            self.seen += 1
            assert self.seen == 1

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        if self.fault == "no watermark" and not after.records:
            return
        if self.fault == "crashes after aclose" and self.sink is None:
            raise RuntimeError("used after aclose")
        super().transition(before, after, at)
        if before.records and not after.records:
            if self.fault == "records on":
                self._deliver(at + 10**9)
            if self.fault == "delivers too late" and self.sink is not None:
                self.sink.watermark(at)
                self._deliver(at - 10**5)
            if self.fault == "work raises" and self.sink is not None:
                self.sink.run_soon(self._raise)

    async def aclose(self) -> None:
        if self.fault == "closes for ever":
            await anyio.sleep(60)
        await super().aclose()
        if self.fault == "crashes after aclose":
            self.sink = None

    def report(self) -> BackendReport:
        return super().report() if self.fault != "no report" else {}  # type: ignore[return-value]

    async def _raise(self) -> None:
        raise OSError("device gone")

    def _deliver(self, at: int) -> None:
        events: Any = empty_block(1)
        events["kind"], events["ts"], events["name"] = Kind.INSTANT, at, strings.intern("said")
        events["track"] = new(TrackKind.THREAD, 1, 1, "faulty")
        assert self.sink is not None
        self.sink.deliver(events)


@pytest.mark.parametrize(
    ("fault", "facts"),
    [
        ("no watermark", ["watermark", "0.2 s"]),
        ("records on", ["said"]),
        ("delivers too late", ["watermark"]),
        ("records unasked", []),
        ("closes for ever", ["aclose", "0.2 s"]),
        ("no report", ["report()"]),
        ("work raises", ["run_soon"]),
    ],
)
def test_the_suite_finds_a_fault(fault: str, facts: list[str]) -> None:
    """A suite that accepts everything proves nothing."""
    # Which fault of a backend shows first, and at which time, depends on its threads.
    with refused(AssertionError, fault, *facts, snapshot=False):
        check_backend(lambda: Faulty(fault), exercise=lambda: time.sleep(0.002), deadline=0.2)


def test_the_suite_lets_exceptions_through() -> None:
    """An exception of a backend is shown as it is."""
    with pytest.raises(RuntimeError, match="used after aclose"):
        check_backend(lambda: Faulty("crashes after aclose"), exercise=lambda: time.sleep(0.002))
    with pytest.raises(ValueError, match="no device"):
        check_window(Case(lambda: ScriptedBackend([Raise(ValueError("no device"), on="open")])))
    with pytest.raises(AssertionError):
        check_restart(Case(lambda: Faulty("opens once"), exercise=lambda: time.sleep(0.002)))


def test_a_silent_backend_is_found_out() -> None:
    """Delivering nothing is allowed only to those who say so."""
    with refused(AssertionError, "scripted", "window 0"):
        check_window(Case(ScriptedBackend))
    assert isinstance(ScriptedBackend(), Backend)


def _valid() -> Any:
    block: Any = empty_block(2)
    block["kind"], block["name"] = Kind.SPAN, strings.intern("valid")
    block["track"] = new(TrackKind.THREAD, 1, 1, "valid")
    return block


@pytest.mark.parametrize(
    ("field", "value", "fact"),
    [
        ("kind", 99, "99"),
        ("dur", -1, "duration"),
        ("name", 2**31, "name"),
        ("name", 0, "name"),
        ("category", 1023, "category"),
        ("track", 2**31, "track"),
        ("track", 0, "track"),
        ("args_len", 1, "0 bytes"),
    ],
)
def test_invalid_blocks_are_found(field: str, value: int, fact: str) -> None:
    """Each thing that exporters rely on is looked at."""
    block = _valid()
    check_block(block, b"")
    block[field][1] = value
    with refused(AssertionError, fact):
        check_block(block, b"")


def test_blocks_of_another_shape_are_found() -> None:
    """A wrong dtype, dimension, or key of an inline argument."""
    with refused(AssertionError, "float64"):
        check_block(np.zeros(3), b"")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with refused(AssertionError, "2"):
        check_block(_valid().reshape(2, 1), b"")
    block = _valid()
    block["flags"], block["args_at"] = Flag.ARG_INLINE, 2**31
    with refused(AssertionError, "2147483648"):
        check_block(block, b"")
