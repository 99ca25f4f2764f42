"""STEPSCOPE_OPTIONS: settings of `trace()` in the environment, for programs without changes."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from stepscope.runtime.control.entry_points.decoding import decode_json
from stepscope.runtime.control.settings import Control
from stepscope.runtime.errors import ControlError
from stepscope.runtime.options import SIGNALS, Options
from stepscope.runtime.requests.window_request import WindowRequest
from stepscope.runtime.schedule.schedule import Schedule
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.checked import Checked
from stepscope.runtime.settings.validation import did_you_mean, find_invalid_value
from stepscope.runtime.threads import locks

VARIABLE = "STEPSCOPE_OPTIONS"
SIGNALS_VARIABLE = "STEPSCOPE_SIGNALS"
MAX_TEXT = 1 << 16
"""Limit of the variable, in characters."""
STEPS = ("schedule", "keep_last", "window", "control")
"""Fields that select the recorded steps."""


class EnvironmentOptions(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of the variable, a JSON object. Each field replaces the argument of the program to `trace()`; `schedule`,
    `keep_last` and `window` replace the program's schedule and `keep_last`.

    Raises:
        ValueError: naming the field, the value and what it should be.
    """

    enabled: bool = True
    """Whether profilers record. With false, they are made, but stay off."""
    schedule: Schedule | None = None
    """Which steps are recorded."""
    keep_last: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Steps that a flight recorder retains."""
    window: WindowRequest | None = None
    """Records one window, and others only on request."""
    control: Control | None = None
    """Entry points for requests of windows."""
    output_dir: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    """Directory of the first run of the process; further runs use `<name>-2`, `<name>-3`, ... in it. Drop-in replacements
    that make a directory for each run make it in this one."""
    name: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    """Name of the run."""
    overhead_budget: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None
    """Allowed cost of recording, as a share of the time."""
    metadata: dict[str, Any] = {}
    """Facts for every output, in addition to those of the program."""
    options: dict[str, Any] = {}
    """Fields of `Options` that replace the program's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        present = [name for name in ("schedule", "keep_last", "window") if getattr(self, name) is not None]
        if len(present) > 1:
            raise ValueError(f"{' and '.join(present)} exclude each other: give one of them")
        self.changed(Options())

    def changed(self, options: Options) -> Options:
        """Returns the program's options with the fields of the variable.

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
    """Decodes the variable; `None` if it is not set, or empty.

    Args:
        fixed: fields of the variable to ignore.

    Raises:
        ControlError: if the content is invalid; names the variable and the reason.
        TypeError: if `fixed` is no list of str.
        ValueError: if `fixed` has an unknown field.
    """
    fields = EnvironmentOptions.__struct_fields__
    if isinstance(fixed, str | bytes) or not isinstance(fixed, Iterable):
        raise TypeError(f"fixed must be a list of names, {got(fixed)}; write fixed=[{fixed!r}]")
    for name in fixed:
        if not isinstance(name, str):
            raise TypeError(f"fixed must have a str each, {got(name)}")
        if name not in fields:
            raise ValueError(f"fixed names {name!r}, which is no field of {VARIABLE}{did_you_mean(name, fields)}")
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    if len(text) > MAX_TEXT:
        raise ControlError(f"{VARIABLE} has {len(text):,} characters, the limit is {MAX_TEXT:,}")
    try:
        found = decode_json(text.encode(errors="backslashreplace"), EnvironmentOptions)
    except ControlError as error:
        raise ControlError(f"{VARIABLE} cannot be followed: {error}", line=error.line, column=error.column) from error
    defaults = EnvironmentOptions()
    return msgspec.structs.replace(found, **{name: getattr(defaults, name) for name in fixed})


Default = TypeVar("Default", bound=str | os.PathLike[str] | None)


def directory_from_environment(default: Default) -> Default | str:
    """Returns the directory for the runs of a drop-in replacement: that of the variable, else the default."""
    found = options_from_environment()
    return default if found is None or found.output_dir is None else found.output_dir


def options_in_effect(options: Options) -> Options:
    """Returns the options of a program with the fields of the variable. Raises as `options_from_environment`."""
    found = options_from_environment()
    return options if found is None else found.changed(options)


def with_signals(options: Options) -> Options:
    """Returns options with the signals of the variable STEPSCOPE_SIGNALS, if it is set.

    Raises:
        ControlError: if it has an unknown signal.
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
    """Returns the directory of the next run of this process: `base` for the first, and directories in it, with the run's name,
    for others."""
    with _assigning:
        path, number = Path(base), 1
        while path in _assigned:
            number += 1
            path = Path(base) / f"{name}-{number}"
        _assigned.add(path)
        return path


_assigned: set[Path] = set()
_assigning = locks.reentrant()
