"""Guesses what an unfit argument of `trace()` was meant to be, for messages."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any, cast

from stepscope.backends.base import Backend
from stepscope.exporters.base import Exporter
from stepscope.runtime.settings.arguments import lacking

_BY_ENDING = {
    ".json": "stepscope.ChromeTraceExporter",
    ".json.gz": "stepscope.ChromeTraceExporter",
    ".pftrace": "stepscope.PerfettoExporter",
    ".parquet": "stepscope.exporters.ParquetExporter",
    ".journal": "stepscope.exporters.JournalExporter",
}
_BY_NAME = {
    "backend": {
        "torch": "stepscope.TorchBackend()",
        "host": "stepscope.backends.HostBackend()",
        "perf": "stepscope.backends.PerfBackend()",
        "nvml": "stepscope.backends.NvmlBackend()",
    },
    "exporter": {
        "chrome": "stepscope.ChromeTraceExporter('trace.json')",
        "perfetto": "stepscope.PerfettoExporter('trace.pftrace')",
        "tensorboard": "stepscope.tensorboard_trace_handler('runs')",
        "console": "stepscope.exporters.ConsoleExporter()",
        "parquet": "stepscope.exporters.ParquetExporter('trace.parquet')",
    },
}
SCHEDULE = "schedule=stepscope.schedule(wait=..., warmup=..., active=...)"


def likely_item(what: str, given: object) -> str:
    """The backend or exporter that something stands for: a path, a name, a class; `...` if that is unknown.

    Args:
        what: `backend` or `exporter`.
        given: what stands in its place.
    """
    if isinstance(given, str | os.PathLike):
        text = str(cast(Any, given))
        if text in _BY_NAME[what]:
            return _BY_NAME[what][text]
        named = next((f"{name}({text!r})" for end, name in _BY_ENDING.items() if text.endswith(end)), "...")
        return named if what == "exporter" else "..."
    kind = given if isinstance(given, type) else type(given)
    contract = Backend if what == "backend" else Exporter
    return f"{kind.__name__}(...)" if _keeps(kind, contract) else "..."


def _keeps(kind: type, contract: type) -> bool:
    """True if a class looks like one that keeps a contract: attributes may be set when it is called."""
    methods = [name for name in vars(contract) if not name.startswith("_") and callable(getattr(contract, name))]
    return bool(methods) and all(hasattr(kind, name) for name in methods)


def why_not(what: str, item: object) -> str:
    """Why an item of `backends` or `exporters` is none, and what would be one."""
    contract = Backend if what == "backend" else Exporter
    other = "exporter" if what == "backend" else "backend"
    if isinstance(item, str | os.PathLike):
        text = str(cast(Any, item))
        return f"it is a {'path' if '.' in text else 'str'}; write {likely_item(what, text)}"
    if isinstance(item, type):
        return f"it is a class; give what calling it makes, {item.__name__}(...)"
    if likely_item(other, item) != "...":
        return f"it is one of the {other}s; write {other}s=[{likely_item(other, item)}]"
    hint = "; a function is given as on_trace_ready" if what == "exporter" and callable(item) else ""
    return f"it lacks {lacking(item, contract)}, see stepscope.{what}s.{contract.__name__}{hint}"


def takes_a_step(schedule: Callable[..., Any]) -> bool:
    """True if a callable can be called with a step's number, as `stepscope.schedule` itself cannot."""
    try:
        signature = inspect.signature(schedule)
    except (TypeError, ValueError):  # a function in C may not say it
        return True
    try:
        signature.bind(0)
    except TypeError:
        return False
    return True


def not_called(given: object) -> str:
    """How to call what was given as `on_trace_ready` without having been called; empty if it was."""
    name = getattr(given, "__name__", "")
    if name == "tensorboard_trace_handler":
        return f"{name}('runs')"
    return f"{name}(...)" if isinstance(given, type) and _keeps(given, Exporter) else ""
