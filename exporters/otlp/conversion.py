"""From batches to requests: what waits for its step, what is chosen, and our own spans around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from stepscope.exporters.otlp.budget import Budget
from stepscope.exporters.otlp.held import HeldWindow, Rows
from stepscope.exporters.otlp.ids import RunIds
from stepscope.exporters.otlp.metrics import MetricMaker
from stepscope.exporters.otlp.options import OtlpOptions
from stepscope.exporters.otlp.placement import Placement, Places
from stepscope.exporters.otlp.request import Request
from stepscope.exporters.otlp.resource import resource
from stepscope.exporters.otlp.selection import Limits, Selection
from stepscope.exporters.otlp.spans import LATEST, SAMPLED, SpanMaker, unix_ns
from stepscope.exporters.otlp.values import attributes
from stepscope.exporters.otlp.wanted import Wanted
from stepscope.exporters.outcomes import Outcomes
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.run import Run
from stepscope.runtime.version import VERSION
from stepscope.runtime.windows.window import Window

METRICS_EVERY = 10_000_000_000
"""ns of recorded time between two requests for the histogram of steps."""


class Conversion:
    """Makes requests of a run. Everything that is given is chosen, or counted as dropped, when it is complete."""

    def __init__(self, run: Run, options: OtlpOptions, outcomes: Outcomes) -> None:
        self._run = run
        self._options = options
        self._outcomes = outcomes
        self._ids = RunIds(run)
        about = Resource(attributes=attributes(resource(run, self._ids.instance, options)))
        scope = InstrumentationScope(name="stepscope", version=VERSION)
        self._places = Places(self._ids)
        self._spans = SpanMaker(run, about, scope, options)
        self._metrics = MetricMaker(run, about, scope, options) if options.metrics else None
        self._limits = Limits(
            Wanted(options),
            Budget(options.spans_per_second),
            Budget(options.spans_per_second) if options.metrics else None,
        )
        self._windows: dict[int, HeldWindow] = {}
        self._metrics_at = run.anchor.monotonic_ns
        self._first: int | None = None
        self._last = 0

    def add(self, batch: EventBatch) -> Iterator[Request]:
        """Takes a batch; gives requests for what is complete by it."""
        held = self._window(batch.window)
        rows = held.add(batch)
        return iter(()) if rows is None else self._convert(held, rows, final=False)

    def close_window(self, window: Window) -> Iterator[Request]:
        """Gives requests for what is left of a window, and for its own span."""
        held = self._window(window.index)
        del self._windows[window.index]
        yield from self._convert(held, held.rest(), final=True)
        bounds = {step.number: (step.start_ns, step.end_ns) for step in window.steps}
        about: dict[str, Any] = {
            "stepscope.window.steps": len(window.steps),
            "stepscope.window.complete": window.complete,
            "stepscope.window.diagnostics": list(window.diagnostics),
            "stepscope.window.ledger": msgspec.to_builtins(window.ledger),
        }
        yield from self._end(held, window.start_ns, window.end_ns, bounds, about)

    def close(self) -> Iterator[Request]:
        """Gives requests for windows that were not closed, and for the run's own span."""
        for index in sorted(self._windows):
            held = self._windows.pop(index)
            yield from self._convert(held, held.rest(), final=True)
            yield from self._end(held, held.first, held.last, {}, {"stepscope.window.complete": False})
        if self._first is None:
            return
        facts = {f"stepscope.metadata.{key}": value for key, value in self._run.metadata().items()}
        facts |= {"stepscope.ledger": msgspec.to_builtins(self._run.ledger())}
        yield from self._spans.own([(self._own("run", self._run.name, self._first, self._last, facts), 0)])
        if self._metrics is not None:
            yield from self._metrics.steps()

    def _window(self, index: int) -> HeldWindow:
        if index not in self._windows:
            self._windows[index] = HeldWindow(index, self._options)
        return self._windows[index]

    def _convert(self, held: HeldWindow, rows: Rows, *, final: bool) -> Iterator[Request]:
        """Chooses at once; spans are made as they are sent."""
        if not len(rows.events):
            return iter(())
        chosen = Selection(rows, held, self._limits, lambda span: self._places.known(held.index, span), final=final)
        held.give_back(rows, chosen.orphans)
        held.loose_marks += chosen.loose_marks
        placement = Placement(rows, held, chosen, self._places)
        spans = self._spans.requests(rows, held.index, chosen, placement)
        for reason, count in (chosen.dropped + placement.dropped).items():
            self._outcomes.drop(held.index, reason, count)
        if self._metrics is not None:
            self._metrics.observe(rows.events[chosen.roots])
        return self._chain(spans, held, rows, chosen)

    def _chain(self, spans: Iterator[Request], held: HeldWindow, rows: Rows, chosen: Selection) -> Iterator[Request]:
        yield from spans
        if self._metrics is None:
            return
        yield from self._metrics.samples(rows, held.index, chosen.samples)
        if held.last - self._metrics_at >= METRICS_EVERY:
            self._metrics_at = held.last
            yield from self._metrics.steps()

    def _end(
        self,
        held: HeldWindow,
        start: int,
        end: int,
        steps: Mapping[int, tuple[int, int]],
        about: Mapping[str, Any],
    ) -> Iterator[Request]:
        """The spans of a window, and of those of its steps that have none."""
        self._first = start if self._first is None else min(self._first, start)
        self._last = max(self._last, end)
        own = self._own("window", f"window {held.index}", start, end, about, held.index)
        spans = [(own, held.loose_marks)]
        for step, extent in sorted(held.rootless.items()):
            first, last = steps.get(step, extent)
            spans.append((self._own("step", f"ProfilerStep#{step}", first, last, {}, held.index, step), 0))
        return self._spans.own(spans, held.index)

    def _own(
        self, what: str, name: str, start: int, end: int, about: Mapping[str, Any], window: int = -1, step: int = -1
    ) -> Span:
        """A span that stands for no event."""
        ids, begin = self._ids, unix_ns(self._run, start)
        span = Span(
            trace_id=ids.step_trace(window, step) if what == "step" else ids.trace,
            span_id={"run": ids.span, "window": ids.window(window), "step": ids.step(window, step)}[what],
            parent_span_id=ids.span if what == "window" else b"",
            name=name.encode("utf-8", "backslashreplace").decode(),
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=begin,
            end_time_unix_nano=min(begin + max(end - start, 0), LATEST),
            attributes=attributes({"stepscope.span": what, **about}),
            flags=SAMPLED,
        )
        if what == "step":
            span.links.add(trace_id=ids.trace, span_id=ids.window(window))
        return span
