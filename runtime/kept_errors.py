"""What others raised while a profiler ran, which was kept instead of disturbing the training."""

from __future__ import annotations

from stepscope.runtime.errors import BackendError, ExporterError, TriggerError
from stepscope.runtime.pipeline import Pipeline


def kept_errors(pipeline: Pipeline | None) -> list[Exception]:
    """What backends, triggers, exporters and callbacks raised so far, each with the original as its cause."""
    errors: list[Exception] = []
    if pipeline is None:
        return errors
    for source in pipeline.sources:
        errors += [_wrapped(BackendError(f"backend {source.name!r}: {e}"), e) for e in source.errors]
    for error in pipeline.flight.watch.errors if pipeline.flight else ():
        errors.append(_wrapped(TriggerError(f"a trigger failed: {error}"), error))
    for outlet in pipeline.outlets:
        errors += [_wrapped(ExporterError(f"exporter {outlet.name!r}: {e}"), e) for e in outlet.errors]
    return errors


def _wrapped(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error
