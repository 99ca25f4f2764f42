"""Exporters that are for one run: what they hold of it would be in the way of another."""

from __future__ import annotations

from stepscope.runtime.errors import ClosedError
from stepscope.runtime.export.run import Run


def refuse_another_run(exporter: object, before: Run | None) -> None:
    """Sees that an exporter has had no run; to be called first in `open`.

    Args:
        exporter: which one.
        before: the run that it was opened for; `None` if it was not.

    Raises:
        ClosedError: if it was.
    """
    if before is not None:
        raise ClosedError(
            f"this {type(exporter).__name__} was opened for the run {before.name!r} before; make another one for each run"
        )
