"""The options of MindSpore's profiler, read strictly."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, Literal, cast

import msgspec

from stepscope.analysis.tables.flops import read_peak
from stepscope.compat.mindspore.errors import ProfilerPathErrorException
from stepscope.compat.mindspore.options.enums import (
    ACTIVITIES,
    LEVELS,
    PROFILER_METRICS,
    AicoreMetrics,
    ExportType,
    HostSystem,
    ProfilerActivity,
    ProfilerLevel,
    member,
)
from stepscope.runtime.files.paths import absolute
from stepscope.runtime.settings.arguments import refusal
from stepscope.runtime.settings.validation import did_you_mean, find_invalid_value

log = logging.getLogger("stepscope")

NEED_OP_TIME: Final = (
    "profile_memory",
    "profile_communication",
    "aicore_metrics",
    "timeline_limit",
    "profile_framework",
    "with_stack",
)
"""Options that MindSpore's documents tie to `op_time`."""


DEFAULT_PATH = "./data"
"""MindSpore's default output directory."""


class ProfilerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sources and outputs of a profiler. Made by `read_options`, which checks every value."""

    output_path: str = DEFAULT_PATH
    """Directory below which every window gets a directory of its own. `read_options` makes it absolute."""
    profiler_level: ProfilerLevel | None = None
    """Sets what a level stands for; `None`: the other options say."""
    activities: tuple[ProfilerActivity, ...] | None = None
    """Observed devices; `None`: MindSpore's default, the host, and the NPU if there is one."""
    op_time: bool = True
    """Record operators. `profile_memory` and the like need it."""
    profile_communication: bool = False
    """Write durations, waiting and bytes of collectives. `Level1` and `Level2` do so too."""
    profile_memory: bool = False
    parallel_strategy: bool = False
    """Write the place of this process in the job, and the layout that the framework reports."""
    start_profile: bool = True
    aicore_metrics: AicoreMetrics = AicoreMetrics.AiCoreNone
    l2_cache: bool = False
    hbm_ddr: bool = False
    pcie: bool = False
    sync_enable: bool = True
    """Time operators on a GPU, not only their launch on the host."""
    data_process: bool = False
    timeline_limit: Annotated[int, msgspec.Meta(ge=1)] = 500
    """MB that `trace_view.json` may take."""
    profile_framework: Literal["all", "time"] | None = None
    """Write what ran on the host, `all` with the memory of the process."""
    with_stack: bool = False
    record_shapes: bool = False
    data_simplification: bool = True
    """Delete raw data when the products are complete."""
    export_type: tuple[ExportType, ...] = (ExportType.Text,)
    mstx: bool = False
    mstx_domain_include: tuple[str, ...] = ()
    mstx_domain_exclude: tuple[str, ...] = ()
    sys_io: bool = False
    sys_interconnection: bool = False
    host_sys: tuple[HostSystem, ...] = ()
    analyse_only: bool = False
    rank_id: Annotated[int, msgspec.Meta(ge=0)] = 0
    """With `analyse_only`: rank whose data are analysed; recording knows its own."""
    env_enable: bool = False
    overhead_budget: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None
    """The allowed cost of recording, as a share of the time, as `stepscope.trace` has it; no option of MindSpore."""
    peak_flops: float | None = None
    """Floating-point operations in a second that the device can do at most. torch's operators then have theirs; no option of
    MindSpore."""
    ascend_names: bool = False
    """Whether directories of windows end with `_ascend_ms` on every device, as scripts and tools for MindSpore's look for them; no option
    of MindSpore."""

    def requested(self) -> tuple[str, ...]:
        """Names of the options that ask for something, also by the level."""
        names = [
            name
            for name in self.__struct_fields__
            if name not in _NO_REQUEST and getattr(self, name) not in (False, None, (), AicoreMetrics.AiCoreNone)
        ]
        names += [name for name, wanted in (("record_shapes", self.shapes), ("with_stack", self.stacks)) if wanted]
        names += ["export_type"] if ExportType.Db in self.export_type else []
        names += [] if self.sync_enable else ["sync_enable"]
        named = self.activities or ()
        names += [kind.name.lower() for kind in (ProfilerActivity.NPU, ProfilerActivity.GPU) if kind in named]
        return tuple(dict.fromkeys(names))

    @property
    def observed(self) -> tuple[ProfilerActivity, ...]:
        """The wanted activities, named or not."""
        return ACTIVITIES[0] if self.activities is None else self.activities

    @property
    def operators(self) -> bool:
        """True if operators are wanted, on the host or, by what launches them there, on a GPU."""
        host = {ProfilerActivity.CPU, ProfilerActivity.GPU} & set(self.observed)
        return self.op_time and bool(host) and self.profiler_level is not ProfilerLevel.LevelNone

    @property
    def host_only(self) -> bool:
        """True if a GPU is left alone, and operators take the time of their launch."""
        return not self.sync_enable or self.activities == (ProfilerActivity.CPU,)

    @property
    def shapes(self) -> bool:
        """Whether shapes of operators' inputs are wanted."""
        return self.operators and (self.record_shapes or self._reaches(ProfilerLevel.Level1))

    @property
    def memory(self) -> bool:
        """Whether the memory of the process is wanted."""
        return self.profile_memory or self.profile_framework == "all" or self._reaches(ProfilerLevel.Level1)

    @property
    def communication(self) -> bool:
        """True if collectives are wanted as products of their own."""
        return self.profile_communication or self._reaches(ProfilerLevel.Level1)

    @property
    def stacks(self) -> bool:
        """Whether stacks of Python functions are wanted."""
        return self.with_stack or self._reaches(ProfilerLevel.Level2)

    def _reaches(self, level: ProfilerLevel) -> bool:
        order = list(ProfilerLevel)
        return self.profiler_level is not None and order.index(self.profiler_level) >= order.index(level)


_NO_REQUEST = frozenset(
    "output_path profiler_level activities start_profile sync_enable timeline_limit export_type overhead_budget peak_flops "
    "ascend_names data_simplification analyse_only rank_id mstx_domain_include mstx_domain_exclude".split()
)
"""Options that request no data."""


def read_options(arguments: Mapping[str, Any], who: str, *, metrics: Mapping[int, AicoreMetrics] | None = None) -> Any:
    """Reads arguments by name. The log names unknown ones, with the nearest known name; they have no effect.

    Args:
        arguments: by name.
        who: the caller, for messages.
        metrics: numbers of `aicore_metrics`; default: those of `Profiler`.

    Raises:
        TypeError: naming an option, its value and the type that it should have.
        ValueError: for a value out of its range, and for one that needs another option.
    """
    fields = ProfilerOptions.__struct_fields__
    values: dict[str, Any] = {}
    for name, value in arguments.items():
        name = _ALIASES.get(name, name)
        if name not in fields:
            meant = "; it is an argument of analyse()" if name in _OF_ANALYSE else did_you_mean(name, fields)
            log.warning("%s has no option %r, which has no effect%s", who, name, meant)
            continue
        try:
            values[name] = _read(name, value, metrics or PROFILER_METRICS)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{who}: {refusal(name, value, str(error))}") from error
    _check_needs(values, who)
    return ProfilerOptions(**values)


_ALIASES = {"aic_metrics": "aicore_metrics", "host_stack": "with_stack", "prof_path": "output_path"}
"""Other names that versions of MindSpore have for an option."""

_OF_ANALYSE = frozenset(("offline_path", "pretty", "step_list", "mode"))


def _check_needs(values: dict[str, Any], who: str) -> None:
    if values.get("op_time", True) is False:
        for name in NEED_OP_TIME:
            if values.get(name) not in (None, False, AicoreMetrics.AiCoreNone):
                raise ValueError(f"{who}: {name}={values[name]!r} needs op_time=True, which is False here")
    if values.get("with_stack") and "profile_framework" in values and values["profile_framework"] is None:
        raise ValueError(f"{who}: with_stack=True needs profile_framework='all' or 'time', which is None here")


def _read(name: str, value: Any, metrics: Mapping[int, AicoreMetrics]) -> Any:
    special = _READERS.get(name)
    if special is not None:
        return special(value)
    if name == "aicore_metrics":
        return AicoreMetrics.AiCoreNone if value is None else member(AicoreMetrics, value, metrics)
    field = _FIELDS[name]
    return field.default if value is None and field.default == () else checked(name, value, field.type)


def checked(name: str, value: Any, kind: Any) -> Any:
    """Converts the value of an option to a type.

    Raises:
        TypeError: if it is of another type; names the option. A bool is no number, and a number no bool.
        ValueError: if it is out of its range.
    """
    invalid = find_invalid_value(value, kind, name)
    if invalid is not None:
        raise (TypeError if invalid.wrong_type else ValueError)(invalid.text)
    return msgspec.convert(value, kind)


def _path(value: Any) -> str:
    if value is None:
        value = os.environ.get("MS_DIAGNOSTIC_DATA_PATH") or DEFAULT_PATH
    try:
        text = os.fsdecode(value)
    except (TypeError, UnicodeError):
        raise TypeError("must be a path") from None
    if isinstance(value, bytes) or not text or "\0" in text:
        raise ProfilerPathErrorException("must be a path as text, not empty")
    return str(absolute(text))


def _level(value: Any) -> ProfilerLevel | None:
    return None if value is None or value == -1 else member(ProfilerLevel, value, LEVELS)


def _several(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    def read(value: Any) -> tuple[Any, ...]:
        if value is None:
            return ()
        items: Iterable[Any] = [value] if isinstance(value, kind | str) else value
        if not isinstance(items, list | tuple | set | frozenset):
            raise TypeError(f"must be a list of {kind.__name__}")
        return tuple(dict.fromkeys(member(kind, item) for item in cast(Iterable[Any], items)))

    return read


def activities_of(value: Any) -> tuple[ProfilerActivity, ...]:
    """Activities by MindSpore's number, by name or as members.

    Raises:
        TypeError: if it is something else.
        ValueError: if there is no such activity, or the list is empty.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value not in ACTIVITIES:
            names = ", ".join(map(str, ACTIVITIES))
            raise ValueError(f"must be one of {names}, or a list of ProfilerActivity")
        return ACTIVITIES[value]
    found = _several(ProfilerActivity)(value)
    if not found:
        raise ValueError(f"must name one at least{did_you_mean('', (each.name for each in ProfilerActivity))}")
    return found


_FIELDS = {field.name: field for field in msgspec.structs.fields(ProfilerOptions)}
_READERS: Mapping[str, Callable[[Any], Any]] = {
    "output_path": _path,
    "profiler_level": _level,
    "activities": lambda value: None if value is None else activities_of(value),
    "peak_flops": lambda value: None if value is None else read_peak(value),
    "export_type": _several(ExportType),
    "host_sys": _several(HostSystem),
}
