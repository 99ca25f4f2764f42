"""The scripted backend plays exactly what its script says, when it says so."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from stepscope.backends.collecting import CollectingSink
from stepscope.backends.simulated.scripted import (
    Counter,
    Deliver,
    Instant,
    Lose,
    Raise,
    ScriptedBackend,
    Span,
)
from stepscope.runtime import _core
from stepscope.runtime.errors import BackendError
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Kind
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.sources.sink import BackendReport
from tests.support.messages import refused

NONE, WARMUP, RECORD, SAVE = ProfilerAction


def opened(*script: Any, **settings: Any) -> tuple[ScriptedBackend, CollectingSink]:
    """A backend that was opened with a sink that keeps work for later."""
    backend, sink = ScriptedBackend(script, **settings), CollectingSink()
    backend.open(sink)
    return backend, sink


def record(backend: ScriptedBackend, start: int, stop: int) -> None:
    """One recording."""
    backend.transition(NONE, RECORD, start)
    backend.transition(RECORD, NONE, stop)


def test_events_are_played_relative_to_the_recording() -> None:
    """Every recording gets its own times; order, arguments and tracks are as written."""
    backend, sink = opened(
        Deliver(
            [
                Span("later", 200, 50, arguments={"rows": 3}, parent=7),
                Span("earlier", 100, 80, category="cpu_op", track="worker", self_dur=30, id=7),
                Counter("loss", 150, 0.5),
                Instant("mark", 160, arguments={"why": "test"}),
            ]
        )
    )
    record(backend, 1000, 2000)
    record(backend, 5000, 6000)
    first, second = [delivery for delivery in sink.deliveries if len(delivery.events)]
    events, args = first.events, first.args
    assert events["ts"].tolist() == [1200, 1100, 1150, 1160]
    assert second.events["ts"].tolist() == [5200, 5100, 5150, 5160]
    assert events["kind"].tolist() == [Kind.SPAN, Kind.SPAN, Kind.COUNTER, Kind.INSTANT]
    assert [strings.text(int(name)) for name in events["name"]] == ["later", "earlier", "loss", "mark"]
    assert (events["dur"][1], events["self_dur"][1], events["id"][1], events["parent"][0]) == (80, 30, 7, 7)
    assert events["value"][2] == 0.5
    decoded = [_core.decode_arguments(args, int(e["args_at"]), int(e["args_len"])) for e in events[[0, 3]]]
    assert decoded == [{"rows": 3}, {"why": "test"}]
    worker = tracks.get(int(events["track"][1]))
    assert worker is not None and worker.name == "worker"
    assert events["track"][0] == events["track"][2] != events["track"][1]
    assert sink.watermarks == [2000, 6000]


def test_a_report_and_no_watermark() -> None:
    """As is asked for."""
    backend, sink = opened(report=BackendReport(mode="other"), auto_watermark=False)
    record(backend, 1000, 2000)
    assert backend.report().mode == "other" and sink.watermarks == []


def test_each_moment_is_played_once() -> None:
    """Items name the moment."""
    backend, sink = opened(
        *(Lose(1, reason=on, on=on) for on in ("open", "warmup", "start", "stop", "aclose")),
    )
    backend.transition(NONE, WARMUP, 5)
    backend.transition(WARMUP, RECORD, 10)
    backend.transition(RECORD, SAVE, 20)
    backend.transition(SAVE, RECORD, 30)
    backend.transition(RECORD, NONE, 40)
    asyncio.run(backend.aclose())
    reasons = [loss.reason for loss in sink.losses]
    assert reasons == ["open", "warmup", "start", "stop", "start", "stop", "aclose"]
    assert [loss.at for loss in sink.losses] == [0, 0, 10, 10, 30, 30, 30]
    assert sink.watermarks == [30, 40]


@pytest.mark.parametrize("on", ["open", "warmup", "start", "stop", "aclose"])
def test_it_raises_where_the_script_says(on: Any) -> None:
    """The very exception, after what was to be played before it; and the end of a recording is still passed."""
    error = RuntimeError("device on fire")
    backend, sink = ScriptedBackend([Lose(1, on=on), Raise(error, on=on)]), CollectingSink()
    with pytest.raises(RuntimeError) as caught:
        backend.open(sink)
        backend.transition(NONE, WARMUP, 1)
        backend.transition(WARMUP, RECORD, 2)
        backend.transition(RECORD, NONE, 3)
        asyncio.run(backend.aclose())
    assert caught.value is error
    assert len(sink.losses) == 1
    assert sink.watermarks == ([3] if on in ("stop", "aclose") else [])
    if on == "open":
        backend.transition(NONE, RECORD, 1)
        assert len(sink.losses) == 1


def test_a_bound_backend_refuses_other_threads() -> None:
    """Where a real one would crash, it raises."""
    backend, _ = opened(thread_bound=True)
    refused: list[BackendError] = []

    def switch() -> None:
        try:
            backend.transition(NONE, RECORD, 1)
        except BackendError as error:
            refused.append(error)

    thread = threading.Thread(target=switch)
    thread.start()
    thread.join()
    assert "bound to the thread that opened it" in str(refused[0])
    backend.transition(NONE, RECORD, 1)


def test_one_profiler_at_a_time() -> None:
    """Shared between two profilers it would deliver to the last one only."""
    backend, _ = opened()
    with refused(BackendError, "scripted", "ScriptedBackend"):
        backend.open(CollectingSink())
