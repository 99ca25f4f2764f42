"""`DynamicProfilerArgs`: the content of the file of `DynamicProfilerMonitor`."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from math import inf
from typing import Annotated, Any, Final, Literal, cast

import msgspec

from stepscope.compat.mindspore.errors import WireError
from stepscope.compat.mindspore.options.enums import (
    ACTIVITIES,
    DYNAMIC_METRICS,
    LEVELS,
    AicoreMetrics,
    ProfilerActivity,
    ProfilerLevel,
    member,
)
from stepscope.compat.mindspore.options.options import (
    ProfilerOptions,
    activities_of,
    checked,
    read_options,
)
from stepscope.runtime.control.entry_points.decoding import decode_json
from stepscope.runtime.errors import ControlError
from stepscope.runtime.session.ranks import ranks_from
from stepscope.runtime.settings.arguments import refusal
from stepscope.runtime.settings.validation import did_you_mean, find_invalid_value

FIELDS: Final[Mapping[str, Any]] = {
    "start_step": -1,
    "stop_step": -1,
    "aicore_metrics": -1,
    "profiler_level": 0,
    "analyse_mode": -1,
    "activities": 0,
    "parallel_strategy": False,
    "with_stack": False,
    "data_simplification": True,
}
"""Fields of the file, in the order of MindSpore's wire format, with their defaults."""

DEFAULT_FILE: Final[Mapping[str, Any]] = {
    "start_step": -1,
    "stop_step": -1,
    "aic_metrics": "AiCoreNone",
    "profiler_level": "Level0",
    "analyse_mode": -1,
    "activities": ["CPU", "NPU"],
    "export_type": ["text"],
    "profile_memory": False,
    "mstx": False,
    "parallel_strategy": False,
    "with_stack": False,
    "data_simplification": True,
    "l2_cache": False,
    "analyse": False,
    "record_shapes": False,
    "prof_path": "./",
    "mstx_domain_include": [],
    "mstx_domain_exclude": [],
    "host_sys": [],
    "sys_io": False,
    "sys_interconnection": False,
}
"""The file that is made if none exists: fields, order and values are those of MindSpore 2.10."""

_FURTHER = frozenset(ProfilerOptions.__struct_fields__) - set(FIELDS) - {"start_profile", "output_path"}
_OWN = ("run_id", "command", "steps", "ranks", "prof_path", "analyse", "aic_metrics", "overlap")
"""Further fields that are no options of `Profiler`."""

_Int32 = Annotated[int, msgspec.Meta(ge=-1 << 31, lt=1 << 31)]
_Code = Literal[-1, 0, 1]
_KINDS: Final[Mapping[str, Any]] = {
    "start_step": Literal["next"] | _Int32,
    "stop_step": _Int32,
    "analyse_mode": _Code,
    "parallel_strategy": bool,
    "with_stack": bool,
    "data_simplification": bool,
    "is_valid": bool,
    "run_id": str | int,
    "command": Literal["", "extend", "abort"],
    "prof_path": Annotated[str, msgspec.Meta(min_length=1)],
    "analyse": bool,
    "steps": Annotated[int, msgspec.Meta(ge=0)],
    "overlap": Literal["refuse", "queue"],
    "profile_framework": _Code,
}
"""Types of fields; those that are not here have readers of their own."""

_MODES = {-1: None, 0: "sync", 1: "async"}
_FRAMEWORK = {-1: None, 0: "all", 1: "time"}
"""Numbers of the guide for `profile_framework`."""

UNSET_PATH: Final = "./"
"""`prof_path` of MindSpore's default file, which leaves it to the monitor's `output_path`."""


_BLOCK: Final = struct.Struct("<4sHHII")
"""Head of a block: its kind, version and flags, and length and CRC-32 of the JSON that follows, by which a torn one is
found."""
_KIND: Final = b"SSDA", 1


class _AnyObject(msgspec.Struct):
    """A JSON object, whatever its fields."""


class DynamicProfilerArgs:
    """Start and stop of a window, 1 for the first step, and what it records.

    Names of levels, activities and metrics may be given as well as MindSpore's numbers, and every option of `Profiler`.
    A value that cannot be is replaced by the field's default; that, and every unknown field, is in `diagnostics`, which the monitor logs.

    Args:
        start_step: first step that is recorded; -1: none; `next`: the next that can be, with `steps`.
        stop_step: last step that is recorded; -1: none.
        aicore_metrics: number (`DYNAMIC_METRICS`) or name.
        profiler_level: 0, 1, 2 or a name; -1: not controlled.
        analyse_mode: 0 makes the products when the window ends, 1 does so in the background, -1 leaves them to
            `Profiler.offline_analyse`.
        activities: 0 for CPU and NPU, 1 for CPU, 2 for NPU, or names.
        parallel_strategy, with_stack, data_simplification: see `ProfilerOptions`.
        is_valid: whether this was read from a file that could be read.
        further: `run_id`, which distinguishes a window from another one of the same steps; `command`, a request to the window that runs: `extend`, to go on
            until the `stop_step` that the file has now, or `abort`, to end at once;
            `steps`, how many are recorded, in place of `stop_step`; `ranks`, those that record, as `"0,3-5"` or a list;
            `prof_path`, a directory that takes the place of the monitor's `output_path`, unless it is `UNSET_PATH`;
            `overlap`, which is `queue` for a window that begins when the one that it overlaps has ended;
            `analyse`, which makes products whatever `analyse_mode` says, or none; and options of `Profiler`.
    """

    FMT: Final = "iiiiii????"
    """Wire format of MindSpore: see `to_bytes`."""
    SIZE: Final = struct.calcsize("iiiiii????")

    def __init__(
        self,
        /,  # a file may have any field, also one called "self"
        start_step: int | Literal["next"] = -1,
        stop_step: int = -1,
        aicore_metrics: int | str = -1,
        profiler_level: int | str = 0,
        analyse_mode: int = -1,
        activities: int | list[str] = 0,
        parallel_strategy: bool = False,
        with_stack: bool = False,
        data_simplification: bool = True,
        is_valid: bool = False,
        **further: Any,
    ) -> None:
        self._warnings: list[str] = []
        if "aic_metrics" in further:
            other, aicore_metrics = aicore_metrics, further.pop("aic_metrics")
            if other not in (-1, aicore_metrics):
                self._warn(f"aicore_metrics is {other!r} and aic_metrics {aicore_metrics!r}: aic_metrics is taken")
        self.start_step: int | Literal["next"] = self._read("start_step", start_step)
        self.stop_step: int = self._read("stop_step", stop_step)
        self._metrics: AicoreMetrics = self._read("aicore_metrics", aicore_metrics)
        self._level: ProfilerLevel | None = self._read("profiler_level", profiler_level)
        self._mode: int = self._read("analyse_mode", analyse_mode)
        self._activities: tuple[ProfilerActivity, ...] = self._read("activities", activities)
        self._parallel_strategy: bool = self._read("parallel_strategy", parallel_strategy)
        self._with_stack: bool = self._read("with_stack", with_stack)
        self._data_simplification: bool = self._read("data_simplification", data_simplification)
        self.is_valid: bool = self._read("is_valid", is_valid, False)
        self.run_id: str = str(self._read("run_id", further.pop("run_id", ""), ""))
        self.command: str = self._read("command", further.pop("command", ""), "")
        """The command to the open window."""
        self.prof_path: str = self._read("prof_path", further.pop("prof_path", UNSET_PATH), UNSET_PATH)
        """Directory below which windows go; `UNSET_PATH`: that of the monitor."""
        self._analyse: bool | None = (
            self._read("analyse", further.pop("analyse"), None) if "analyse" in further else None
        )
        if self._analyse is False and self._mode != -1:
            self._warn(f"analyse is False, so analyse_mode {self._mode} makes no products; did you mean analyse true?")
        self.steps: int = self._read("steps", further.pop("steps", 0), 0)
        """Number of recorded steps; 0: `stop_step` is the last one."""
        self.ranks: tuple[int, ...] | None = self._read("ranks", further.pop("ranks", None), ())
        """Ranks that record; `None`: all; empty if the field could not be read."""
        self.overlap: Literal["refuse", "queue"] = self._read("overlap", further.pop("overlap", "refuse"), "refuse")
        """The rule for a window that overlaps another one."""
        self._further = self._read_further(further)

    def _read(self, name: str, value: Any, *default: Any) -> Any:
        read = _READERS.get(name, lambda value: checked(name, value, _KINDS[name]))
        try:
            return read(value)
        except (TypeError, ValueError) as error:
            fallback = default[0] if default else read(FIELDS[name])
            self._warn(f"{refusal(name, value, str(error))}; {_shown(fallback) or 'the default'} is taken")
            return fallback

    def _read_further(self, fields: dict[str, Any]) -> dict[str, Any]:
        options: dict[str, Any] = {}
        for name, value in fields.items():
            if name == "profile_framework" and isinstance(value, int) and not isinstance(value, bool):
                value = _FRAMEWORK[self._read(name, value, -1)]
                if value is None:
                    continue
            if name in _FURTHER:
                try:
                    read_options({name: value}, "file", metrics=DYNAMIC_METRICS)
                except (TypeError, ValueError) as error:
                    self._warn(f"{str(error).removeprefix('file: ')}; the default is taken")
                else:
                    options[name] = value
            else:
                self._warn(f"there is no field {name!r}{did_you_mean(name, [*FIELDS, *sorted(_FURTHER), *_OWN])}")
        return options

    def _warn(self, text: str) -> None:
        self._warnings.append(text)

    @property
    def diagnostics(self) -> tuple[str, ...]:
        """Fields that could not be used, one sentence for each."""
        return tuple(self._warnings)

    @property
    def analyse_mode(self) -> str | None:
        """`sync`, `async`, or `None` for no analysis."""
        if self._analyse is None:
            return _MODES[self._mode]
        return (_MODES[self._mode] or "sync") if self._analyse else None

    @property
    def vars(self) -> dict[str, Any]:
        """The fields of the file: numbers where MindSpore has one, else names."""
        own: dict[str, Any] = {} if self.prof_path == UNSET_PATH else {"prof_path": self.prof_path}
        own |= {"steps": self.steps} if self.steps else {}
        own |= {} if self.ranks is None else {"ranks": list(self.ranks)}
        own |= {} if self.overlap == "refuse" else {"overlap": self.overlap}
        own |= {} if self._analyse is None else {"analyse": self._analyse}
        return {**self._fields(), **own, **self._further}

    @property
    def args(self) -> dict[str, Any]:
        """The options for `Profiler`, without those whose default applies. Reading them changes nothing."""
        level = {} if self._level is None else {"profiler_level": self._level}
        # MindSpore writes its default into every file, so that names what nobody may have asked for.
        named = {} if self._activities == ACTIVITIES[0] else {"activities": list(self._activities)}
        return {
            **level,
            **named,
            "aicore_metrics": self._metrics,
            "parallel_strategy": self._parallel_strategy,
            "with_stack": self._with_stack,
            "data_simplification": self._data_simplification,
            **self._further,
        }

    def _fields(self) -> dict[str, Any]:
        names = [activity.value for activity in self._activities]
        level = -1 if self._level is None else _number(self._level, LEVELS)
        activities = next((number for number, each in ACTIVITIES.items() if set(each) == set(self._activities)), names)
        return {
            "start_step": self.start_step,
            "stop_step": self.stop_step,
            "aicore_metrics": _number(self._metrics, DYNAMIC_METRICS),
            "profiler_level": level,
            "analyse_mode": self._mode,
            "activities": activities,
            "parallel_strategy": self._parallel_strategy,
            "with_stack": self._with_stack,
            "data_simplification": self._data_simplification,
        }

    def to_bytes(self) -> bytes:
        """MindSpore's own format: `struct` of `FMT`. It holds no further options and no checksum; see `to_block`.

        Raises:
            ValueError: if a field has a value for which MindSpore has no number.
        """
        fields = self._fields()
        for name, value in fields.items():
            if not isinstance(value, int):
                raise ValueError(
                    f"{name} is {value!r}, for which MindSpore has no number; to_block() holds names as well"
                )
        return struct.pack(self.FMT, *fields.values(), self.is_valid)

    @classmethod
    def from_bytes(cls, byte_data: bytes) -> DynamicProfilerArgs:
        """Reads what `to_bytes` made.

        Raises:
            ValueError: for another number of bytes.
        """
        if len(byte_data) != cls.SIZE:
            raise ValueError("Number of variables does not match format string.")
        return cls(*struct.unpack(cls.FMT, byte_data))

    def to_block(self) -> bytes:
        """All fields as a versioned block with a checksum."""
        content = json.dumps(self._content(), separators=(",", ":")).encode()
        return _BLOCK.pack(*_KIND, 0, len(content), zlib.crc32(content)) + content

    def _content(self) -> dict[str, Any]:
        fields = {**self.vars, "run_id": self.run_id, "command": self.command, "is_valid": self.is_valid}
        return {name: _plain(value) for name, value in fields.items()}

    @classmethod
    def from_block(cls, block: bytes) -> DynamicProfilerArgs:
        """Reads what `to_block` made; ignores bytes behind it.

        Raises:
            WireError: if it is torn, of another version, or something else.
        """
        *kind, _, length, checksum = _BLOCK.unpack_from(block.ljust(_BLOCK.size, b"\0"))
        content = block[_BLOCK.size : _BLOCK.size + length]
        if tuple(kind) != _KIND:
            raise WireError(
                f"a block begins with {_KIND[0]!r} and version {_KIND[1]}, got {kind[0]!r} and version {kind[1]}"
            )
        if len(content) != length or zlib.crc32(content) != checksum:
            raise WireError(f"the block is torn: {length} bytes were announced, {len(content)} are there")
        try:
            fields = msgspec.json.decode(content, type=dict[str, Any])
        except ValueError as error:
            raise WireError(f"the block holds no JSON object: {error}") from error
        return cls(**fields)

    @classmethod
    def from_json(cls, content: bytes) -> DynamicProfilerArgs:
        """Reads a file.

        Raises:
            ControlError: if it is no JSON object; says where. A `ValueError`.
        """
        try:
            content.decode()
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise ControlError(f"line {line}: it is no UTF-8: {error.reason}", line=line) from error
        decode_json(content, _AnyObject)
        # A number that is too large is infinite here, so that its field is named.
        text = content.removeprefix(b"\xef\xbb\xbf")
        found = json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 1000 else inf)
        found.pop("is_valid", None)
        return cls(is_valid=True, **found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DynamicProfilerArgs) and self._content() == other._content()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"DynamicProfilerArgs({', '.join(f'{name}={value!r}' for name, value in self.vars.items())})"


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast(Iterable[Any], value)]
    return getattr(value, "value", value)


def _activities(value: Any) -> tuple[ProfilerActivity, ...]:
    if value is None:
        raise TypeError(f"must be one of {', '.join(map(str, ACTIVITIES))}, or a list of names")
    return activities_of(value)


def _shown(value: Any) -> str:
    """A default as a file names it."""
    if isinstance(value, Enum):
        return value.name
    return ", ".join(map(_shown, cast(Iterable[Any], value))) if isinstance(value, tuple) else repr(value)


def _ranks(value: Any) -> tuple[int, ...] | None:
    if value is None or isinstance(value, str):
        return ranks_from(value)
    if not value or find_invalid_value(value, list[Annotated[int, msgspec.Meta(ge=0)]]) is not None:
        raise TypeError('must name ranks, as "0,3-5" or [0, 3]')
    return ranks_from(value)


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "aicore_metrics": lambda value: member(AicoreMetrics, value, DYNAMIC_METRICS),
    "profiler_level": lambda value: None if value == -1 else member(ProfilerLevel, value, LEVELS),
    "activities": _activities,
    "ranks": _ranks,
}


def _number(value: Any, numbers: Mapping[int, Any]) -> int | str:
    return next((number for number, each in numbers.items() if each is value), str(value.name))
