"""STEPSCOPE_OPTIONS: settings of `trace()` in the environment, for programs that are not to be changed."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from stepscope.runtime.control.entry_points.decoding import decode_json
from stepscope.runtime.control.requests.window_request import WindowRequest
from stepscope.runtime.control.settings import Control
from stepscope.runtime.errors import ControlError
from stepscope.runtime.options import SIGNALS, Options
from stepscope.runtime.schedule.schedule import Schedule
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.checked import Checked
from stepscope.runtime.settings.validation import did_you_mean, find_invalid_value
from stepscope.runtime.threads import locks

VARIABLE = "STEPSCOPE_OPTIONS"
SIGNALS_VARIABLE = "STEPSCOPE_SIGNALS"
MAX_TEXT = 1 << 16
"""Characters of the variable."""
STEPS = ("schedule", "keep_last", "window", "control")
"""Fields that say which steps are recorded."""


class ScheduleOptions(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule, as `schedule(...)` takes it."""

    active: int
    wait: int = 0
    warmup: int = 0
    repeat: int = 0
    skip_first: int = 0
    skip_first_wait: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.schedule()

    def schedule(self) -> Schedule:
        """The schedule.

        Raises:
            ScheduleError: if a value is out of its range. A `ValueError`.
        """
        return Schedule(**msgspec.structs.asdict(self))


class EnvironmentOptions(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the variable may say, as a JSON object. Each field that it has takes the place of what the program gave to
    `trace()`; a schedule, `keep_last` and `window` that of the program's schedule and `keep_last`.

    Raises:
        ValueError: naming the field, the value and what it should be.
    """

    enabled: bool = True
    """Whether profilers record anything; with false they are made, and stay off."""
    schedule: ScheduleOptions | None = None
    """Which steps are recorded."""
    keep_last: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Steps that a flight recorder keeps."""
    window: WindowRequest | None = None
    """One window, and nothing else unless it is asked for."""
    control: Control | None = None
    """By which ways windows can be asked for."""
    output_dir: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    """Directory of the first run of the process; each further one has `<name>-2`, `<name>-3`, ... in it. Front doors
    that make a directory for each of their runs make these in it."""
    name: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    """Of the run."""
    overhead_budget: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None
    """What recording may cost, as a share of the time."""
    metadata: dict[str, Any] = {}
    """Facts for every output, beside those of the program."""
    options: dict[str, Any] = {}
    """Fields of `Options`, in place of the program's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in ("schedule", "keep_last", "window") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other: give one of them")
        self.changed(Options())

    def changed(self, options: Options) -> Options:
        """The program's options with what stands here in their place.

        Raises:
            ValueError: naming the field, the value and what it should be.
        """
        if not self.options:
            return options
        invalid = find_invalid_value(self.options, Options, "options")
        if invalid is not None:
            raise ValueError(invalid.text)
        return msgspec.convert({**msgspec.structs.asdict(options), **self.options}, Options)


def options_from_environment(fixed: Collection[str] = ()) -> EnvironmentOptions | None:
    """What the variable says; `None` if it is not set, or empty.

    Args:
        fixed: fields that have no say.

    Raises:
        ControlError: naming the variable and what is wrong with it.
        TypeError: if `fixed` is a str.
        ValueError: for a fixed field that there is none of.
    """
    known = EnvironmentOptions.__struct_fields__
    if isinstance(fixed, str):
        raise TypeError(f"fixed must be a list of names, {got(fixed)}; write fixed=[{fixed!r}]")
    for name in fixed:
        if name not in known:
            raise ValueError(f"fixed names {name!r}, which is no field of {VARIABLE}{did_you_mean(name, known)}")
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    if len(text) > MAX_TEXT:
        raise ControlError(f"{VARIABLE} has {len(text):,} characters, the limit is {MAX_TEXT:,}")
    try:
        found = decode_json(text.encode(errors="backslashreplace"), EnvironmentOptions)
    except ControlError as error:
        raise ControlError(f"{VARIABLE} cannot be followed: {error}", line=error.line, column=error.column) from error
    silent = EnvironmentOptions()
    return msgspec.structs.replace(found, **{name: getattr(silent, name) for name in fixed})


Otherwise = TypeVar("Otherwise", bound=str | os.PathLike[str] | None)


def directory_from_environment(otherwise: Otherwise) -> Otherwise | str:
    """Where a front door makes the directories of its runs: where the variable says, else where its user does.

    Raises:
        ControlError: as `options_from_environment`.
    """
    found = options_from_environment()
    return otherwise if found is None or found.output_dir is None else found.output_dir


def options_in_effect(options: Options) -> Options:
    """Options of a program, with what the variable says of them in their place.

    Raises:
        ControlError: as `options_from_environment`.
    """
    found = options_from_environment()
    return options if found is None else found.changed(options)


def with_signals(options: Options) -> Options:
    """Options with the signals that the variable STEPSCOPE_SIGNALS names, if it is set.

    Raises:
        ControlError: if it names what is no signal.
    """
    text = os.environ.get(SIGNALS_VARIABLE, "").strip()
    if not text:
        return options
    chosen: tuple[str, ...] = tuple(name.strip() for name in text.split(",") if name.strip())
    if text in ("none", "all"):
        chosen = SIGNALS if text == "all" else ()
    unknown = [name for name in chosen if name not in SIGNALS]
    if unknown:
        hint = did_you_mean(unknown[0], (*SIGNALS, "all", "none"))
        raise ControlError(f"{SIGNALS_VARIABLE} cannot be followed: there is no signal {unknown[0]!r}{hint}")
    return msgspec.structs.replace(options, signals=chosen)


def run_directory(base: str, name: str) -> Path:
    """The directory of the next run of this process: `base`, and directories in it for all but the first.

    Args:
        base: that the variable names.
        name: of the run, as it is fit for a file.
    """
    with _assigning:
        path, number = Path(base), 1
        while path in _assigned:
            number += 1
            path = Path(base) / f"{name}-{number}"
        _assigned.add(path)
        return path


_assigned: set[Path] = set()
_assigning = locks.reentrant()
