"""Lists the events that can be recorded here, or why not."""

from __future__ import annotations

import importlib.util
import logging

from stepscope.compat.mxnet.recording.settings import MXNetSettings
from stepscope.runtime.settings.documented import Documented

log = logging.getLogger("stepscope")

_REMEDY = "for torch's operators: set_config(backends=[stepscope.TorchBackend()])"


class Capability(Documented, frozen=True):
    """States if one kind of event is recorded."""

    kind: str
    """`objects`, `symbolic`, `imperative`, `api` or `memory`."""
    recorded: bool
    """True if it is."""
    why: str
    """By whom, or why not and what to do."""


def capabilities_of(settings: MXNetSettings) -> tuple[Capability, ...]:
    """Lists the events that these settings record."""
    engine = _why_no_engine()
    backends = ", ".join(backend.name for backend in settings.backends)
    return (
        Capability("objects", True, "tasks, frames, events, counters and markers of the program"),
        Capability("symbolic", False, engine),
        Capability("imperative", bool(backends), f"by {backends}" if backends else f"{engine}; {_REMEDY}"),
        Capability("api", False, engine),
        Capability(
            "memory",
            settings.records("memory"),
            "of the process and of torch's devices, 20 times a second"
            if settings.records("memory")
            else "not asked for: set_config(profile_memory=True)",
        ),
    )


def log_missing(settings: MXNetSettings, requested: frozenset[str]) -> None:
    """Logs which events are not recorded: as a warning if some of them were asked for by name, else as information."""
    missing = [one.kind for one in capabilities_of(settings) if not one.recorded and settings.records(one.kind)]
    if not missing:
        return
    by_name = any(f"profile_{kind}" in requested or "profile_all" in requested for kind in missing)
    log.log(
        logging.WARNING if by_name else logging.INFO,
        "stepscope.mxnet records what the program marks, but of MXNet no operators or API calls (%s): %s%s",
        ", ".join(missing),
        _why_no_engine(),
        f"; {_REMEDY}" if "imperative" in missing else "",
    )


def _why_no_engine() -> str:
    """Why MXNet's own operators and calls are not recorded."""
    if importlib.util.find_spec("mxnet") is None:
        return "MXNet is not installed"
    return "MXNet keeps its engine's events to its own profiler"
