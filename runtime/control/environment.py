"""STEPSCOPE_OPTIONS: settings of `trace()` in the environment, for programs that are not to be changed."""

from __future__ import annotations

import os
from typing import Annotated, Any

import msgspec

from stepscope.runtime.checked import Checked
from stepscope.runtime.control.decoding import decode_json
from stepscope.runtime.control.settings import Control
from stepscope.runtime.control.window_request import WindowRequest
from stepscope.runtime.errors import ControlError
from stepscope.runtime.misfit import as_json, find_misfit
from stepscope.runtime.options import Options
from stepscope.runtime.schedule import Schedule

VARIABLE = "STEPSCOPE_OPTIONS"
MAX_TEXT = 1 << 16
"""Characters of the variable."""


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
    """Directory of the run."""
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
        misfit = find_misfit(self.options, Options, as_json, at=("options",))
        if misfit is not None:
            raise ValueError(misfit.in_file())
        return msgspec.convert({**msgspec.structs.asdict(options), **self.options}, Options)


def options_from_environment() -> EnvironmentOptions | None:
    """What the variable says; `None` if it is not set, or empty.

    Raises:
        ControlError: naming the variable and what is wrong with it.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    if len(text) > MAX_TEXT:
        raise ControlError(f"{VARIABLE} has {len(text):,} characters, the limit is {MAX_TEXT:,}")
    try:
        return decode_json(text.encode(errors="replace"), EnvironmentOptions)
    except ControlError as error:
        raise ControlError(f"{VARIABLE} cannot be followed: {error}", line=error.line, column=error.column) from error
