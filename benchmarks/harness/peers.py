"""The tools that stepscope is compared with: imported when they are asked for, in processes of their own."""

from __future__ import annotations

import importlib
from typing import Any


class NotInstalledError(Exception):
    """Raised when a tool that is to be measured is not installed here."""


def peer(module: str) -> Any:
    """A module of another tool.

    Raises:
        NotInstalledError: if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise NotInstalledError(f"{error.name} is not installed") from error


def torch_profile(**arguments: Any) -> Any:
    """`torch.profiler.profile` of the CPU."""
    profiler = peer("torch.profiler")
    return profiler.profile(activities=[profiler.ProfilerActivity.CPU], **arguments)


def viztracer(entries: int) -> Any:
    """A `VizTracer` with room for `entries` events, that records explicit events only: functions would cost extra."""
    return peer("viztracer").VizTracer(tracer_entries=entries, max_stack_depth=0, verbose=0)


def opentelemetry_provider() -> Any:
    """A tracer provider of the OpenTelemetry SDK, with the batch processor and an exporter that does nothing."""
    sdk, export = peer("opentelemetry.sdk.trace"), peer("opentelemetry.sdk.trace.export")

    class NoExporter:
        """All that the processor calls."""

        def export(self, spans: object) -> Any:
            return export.SpanExportResult.SUCCESS

        def shutdown(self) -> None:
            pass

    provider = sdk.TracerProvider()
    provider.add_span_processor(export.BatchSpanProcessor(NoExporter()))
    return provider
