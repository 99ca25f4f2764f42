"""What was raised while a profiler ran, by others or by faults of ours, and was kept instead of disturbing the training."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.runtime.accounting.error_text import error_text
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.errors import BackendError, ExporterError, InternalError, ScheduleError, TriggerError
from stepscope.runtime.loop.pipeline import Pipeline


def kept_errors(pipeline: Pipeline | None) -> list[Exception]:
    """What backends, triggers, exporters and callbacks raised so far, and faults of ours, each with its cause."""
    errors: list[Exception] = []
    if pipeline is None:
        return errors
    for source in pipeline.sources:
        errors += [_wrapped(BackendError(f"backend {source.name!r}: {text}"), e) for e, text in source.raised.kept]
    for error, text in pipeline.flight.watch.raised.kept if pipeline.flight else ():
        errors.append(_wrapped(TriggerError(f"a trigger failed: {text}"), error))
    for worker in pipeline.workers:
        errors += [_wrapped(ExporterError(f"exporter {worker.name!r}: {text}"), e) for e, text in worker.raised.kept]
    for fault, text in pipeline.faults.raised.kept:
        errors.append(_wrapped(InternalError(f"a fault of stepscope: {text}; please report it"), fault))
    return errors


def schedule_errors(error: BaseException | None) -> list[Exception]:
    """What the schedule raised: itself, or as the cause of an error that is no request to exit."""
    if error is None or isinstance(error, Exception):
        return [] if error is None else [error]
    return [_wrapped(ScheduleError(f"the schedule failed: {error_text(error)}"), error)]


def error_notes(pipeline: Pipeline | None) -> Iterator[str]:
    """The same in words, a sentence for each that failed; those of triggers are with what they saved."""
    if pipeline is None:
        return
    for source in pipeline.sources:
        yield from source.blocked_notes
        if source.raised.count:
            count = human_count(source.raised.count, "time")
            yield f"backend {source.name!r} failed {count}, first in {source.raised.first}; raise_errors() raises it"
    for worker in pipeline.workers:
        said = worker.statistics()
        if said.errors:
            count = human_count(said.errors, "time")
            yield f"exporter {worker.name!r} failed {count}, first by {said.first_error}; raise_errors() raises it"
    faults = pipeline.faults.raised
    if faults.count:
        count = human_count(faults.count, "fault")
        yield (
            f"{count} of stepscope, first in {faults.first}: something of what was recorded may be missing; please "
            "report what raise_errors() raises"
        )


def _wrapped(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error
