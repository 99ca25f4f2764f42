"""Whose exporters and callbacks somebody is part of: they must not wait for themselves."""

from __future__ import annotations

from contextvars import ContextVar

_pipeline: ContextVar[object | None] = ContextVar("stepscope delivering", default=None)


def deliver_for(pipeline: object) -> None:
    """From here on, and in what is started from here, the caller is part of this pipeline."""
    _pipeline.set(pipeline)


def delivering() -> object | None:
    """The pipeline whose exporter or callback the caller is, on whatever thread; `None` for everybody else."""
    return _pipeline.get()
