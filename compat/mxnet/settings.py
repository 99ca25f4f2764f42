"""Settings of `set_config`, and the events that they have recorded, or the reason for none."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from stepscope.backends.base import Backend
from stepscope.compat.mxnet.errors import MXNetValueError
from stepscope.compat.mxnet.objects.forwarding import Forward
from stepscope.exporters.base import Exporter
from stepscope.runtime.control.settings import Control
from stepscope.runtime.options import Options, PositiveFloat
from stepscope.runtime.schedule.schedule import ScheduleFunction
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.checked import Checked
from stepscope.runtime.settings.documented import Documented
from stepscope.runtime.settings.validation import did_you_mean

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class MXNetSettings(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `set_config`; what is not given has its default again. The last eight are not in MXNet.

    Raises:
        MXNetValueError: naming the field, the value and what it should be; from `set_config`.
    """

    __keywords__ = True
    __unchecked__ = ("backends", "exporters", "metadata", "schedule", "options", "control", "forward")

    filename: str = "profile.json"
    """The Chrome trace. `{rank}` and `{pid}` are replaced; where there are several ranks and it names neither, `_rank<n>` is
    put before its ending. With `.gz` it is compressed."""
    gpu_memory_profile_filename_prefix: str = ""
    """`dump` writes the allocations that backends reported to `<prefix>-pid_<pid>.csv`; empty: it does not."""
    profile_all: bool = False
    """Sets all of the next four to True."""
    profile_symbolic: bool = True
    """Operators of symbols: nothing is recorded of them, and `set_state("run")` says so if this is asked for."""
    profile_imperative: bool = True
    """Operators: those that `backends` record."""
    profile_memory: bool = True
    """Memory of the process and of torch's devices, as counters."""
    profile_api: bool = True
    """Calls of the C API: nothing is recorded of them, as for `profile_symbolic`."""
    continuous_dump: bool = True
    """Accepted as in MXNet, without effect: the file is always written while recording goes on, and is complete at any
    moment."""
    dump_period: PositiveFloat = 1.0
    """Seconds after which the file is written again, at the latest."""
    aggregate_stats: bool = False
    """If true, `dumps` returns statistics; otherwise, an empty text."""
    profile_process: Literal["worker", "server"] = "worker"
    """`server`: the settings are for the other processes, see `set_kvstore_handle`."""
    backends: tuple[Backend, ...] = ()
    """Further backends, such as `stepscope.TorchBackend()` for operators."""
    exporters: tuple[Exporter, ...] = ()
    """Further outputs of events."""
    schedule: ScheduleFunction | None = None
    """Which steps are recorded while the state is `run`, counted by `step()`; without one all are."""
    metadata: Mapping[str, Any] = {}
    """Facts for the file."""
    output_dir: str | None = None
    """Directory of the run's journal, as in `stepscope.trace`."""
    options: Options = Options(signals=())
    """Sizes of buffers, deadlines, and what is dropped first."""
    control: str | Control | None = None
    """By which ways windows can be asked of the running program, as in `stepscope.trace`. Nothing is recorded then but
    what is asked for."""
    forward: Forward | None = None
    """Further receivers of tasks, frames, events and markers, such as `NvtxForward()`."""

    def records(self, kind: str) -> bool:
        """Whether a kind is to be recorded: `symbolic`, `imperative`, `memory` or `api`."""
        return self.profile_all or bool(getattr(self, f"profile_{kind}"))


SHAPES = (
    "filename",
    "profile_all",
    "profile_memory",
    "backends",
    "exporters",
    "schedule",
    "metadata",
    "output_dir",
    "options",
    "dump_period",
    "control",
)
"""Settings that a recorder cannot change; a change replaces the recorder."""


def settings_of(arguments: Mapping[str, Any]) -> MXNetSettings:
    """The settings that were given, the others being the defaults.

    Raises:
        MXNetValueError: for a name that there is none of, with the nearest; for a value that does not fit.
    """
    fields = MXNetSettings.__struct_fields__
    values: dict[str, Any] = {}
    for name, value in arguments.items():
        if name not in fields:
            raise MXNetValueError(f"set_config() has no setting {name!r}{did_you_mean(name, fields)}")
        values[name] = _value(name, value)
    try:
        settings = MXNetSettings(**values)
    except ValueError as error:
        raise MXNetValueError(f"set_config(): {error}") from error
    _check_objects(settings)
    return settings


def _value(name: str, value: Any) -> Any:
    """Converts a value as MXNet does: booleans also from text or number, paths of any kind."""
    items: Any = value  # whatever a check below says of its type, its parts may be anything
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    if name in ("backends", "exporters") and isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(items)
    default = next(field for field in msgspec.structs.fields(MXNetSettings) if field.name == name).default
    if isinstance(default, bool) and not isinstance(value, bool):
        return _BOOLEANS.get(str(value).lower(), value)
    return value


def _check_objects(settings: MXNetSettings) -> None:
    if not settings.filename:
        raise MXNetValueError("set_config(): filename must not be empty; name a file")
    kinds: tuple[tuple[str, Any], ...] = (("backends", Backend), ("exporters", Exporter))
    for name, contract in kinds:
        items: object = getattr(settings, name)
        if not isinstance(items, tuple):
            raise MXNetValueError(f"set_config(): {name} must be a list, {got(items)}; write {name}=[...]")
        for item in cast("tuple[object, ...]", items):
            if isinstance(item, type) or not isinstance(item, contract):
                raise MXNetValueError(f"set_config(): {name} must have a {contract.__name__} each, {got(item)}")
    others: tuple[tuple[str, Any, str], ...] = (
        ("options", Options, "be stepscope.Options"),
        ("control", str | Control | None, "be a path or stepscope.Control"),
        ("forward", Forward | None, "have start, stop and mark"),
        ("metadata", Mapping, "be a mapping"),
    )
    for name, kind, expected in others:
        if not isinstance(value := getattr(settings, name), kind):
            raise MXNetValueError(f"set_config(): {name} must {expected}, {got(value)}")
    if settings.schedule is not None and not callable(settings.schedule):
        raise MXNetValueError(f"set_config(): schedule must be callable, {got(settings.schedule)}")


log = logging.getLogger("stepscope")

_REMEDY = "for torch's operators: set_config(backends=[stepscope.TorchBackend()])"


class Capability(Documented, frozen=True):
    """Whether one kind of event is recorded, and why."""

    kind: str
    """`objects`, `symbolic`, `imperative`, `api` or `memory`."""
    recorded: bool
    """Whether it is recorded."""
    why: str
    """The source that records it, or the reason why nothing does and what to do."""


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
    """The reason why MXNet's own operators and calls are not recorded."""
    if importlib.util.find_spec("mxnet") is None:
        return "MXNet is not installed"
    return "MXNet keeps its engine's events to its own profiler"
