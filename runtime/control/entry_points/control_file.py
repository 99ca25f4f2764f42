"""The watched file: what may stand in it, and what it asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from stepscope.runtime.control.entry_points.decoding import decode_json
from stepscope.runtime.requests.end_change import EndRequest
from stepscope.runtime.requests.window_detail import WindowDetail, detail_from
from stepscope.runtime.requests.window_request import (
    Count,
    Rank,
    RunId,
    Seconds,
    Stage,
    StepNumber,
    WindowRequest,
)
from stepscope.runtime.session.ranks import ranks_from
from stepscope.runtime.settings.checked import Checked

NAME = "stepscope.json"
"""Of the file in a directory that is watched."""


class ControlFile(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a control file says; the fields of `WindowRequest`, and commands. All are optional.

    Raises:
        ValueError: naming the field, the value and what it should be.
    """

    command: Literal["extend", "abort"] | None = None
    """What is to become of the armed window that runs: `extend` lets it go on for `steps` or `seconds` more, `abort` ends
    it with the current step, or on several ranks with the next one that rank 0 chooses. Otherwise a running window
    stays as it is, whatever is written here."""
    start_step: StepNumber | Literal["next"] | None = None
    """First step of a window; nothing is asked for without it."""
    steps: Count | None = None
    """Its length."""
    stop_step: StepNumber | None = None
    """Or its last step."""
    seconds: Seconds | None = None
    """Or how long it lasts."""
    ranks: str | tuple[Rank, ...] | None = None
    """The ranks that record: `"0,3-5"` or `[0, 3, 4, 5]`; all if it is left out."""
    run_id: RunId = ""
    """Another one has the same steps recorded again."""
    warmup: int = 0
    """Steps in which backends warm up."""
    granularity: Count = 1
    """Windows are made of groups of so many steps."""
    past: Literal["refuse", "clip"] = "refuse"
    """What happens if the first step is past."""
    overlap: Literal["refuse", "queue"] = "refuse"
    """What happens if another window has some of its steps."""
    stage: Stage = ""
    """Only in the stage of this name, such as `fit`: others refuse, and when it begins it takes the request."""
    detail: str | WindowDetail | None = None
    """How much the window has: `"stacks,memory=off"` or `{"stacks": true, "memory": false}`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.command is None:
            self.request()
        elif self.command == "extend" and (self.steps is None) == (self.seconds is None):
            raise ValueError("command 'extend' takes steps or seconds: how much longer the window is to be")

    def end_request(self) -> EndRequest | None:
        """What is to become of the window that runs; `None` if nothing."""
        if self.command == "extend":
            return EndRequest(command="extend", steps=self.steps or 0, seconds=self.seconds or 0.0)
        if self.command == "abort":
            return EndRequest(command="abort", run_id=self.run_id, reason="the control file says so")
        return None

    def request(self) -> WindowRequest | None:
        """The window that is asked for; `None` if none is.

        Raises:
            ValueError: if no window can be like that.
        """
        if self.start_step is None:
            return None
        return WindowRequest(
            start_step=self.start_step,
            steps=self.steps,
            stop_step=self.stop_step,
            seconds=self.seconds,
            ranks=ranks_from(self.ranks),
            run_id=self.run_id,
            warmup=self.warmup,
            granularity=self.granularity,
            past=self.past,
            overlap=self.overlap,
            stage=self.stage,
            detail=detail_from(self.detail),
        )


def decode_control_file(content: bytes) -> ControlFile:
    """Decodes a control file.

    Raises:
        ControlError: with line, column and reason.
    """
    return decode_json(content, ControlFile)


def default_content() -> bytes:
    """A file that asks for nothing and shows every field."""
    return msgspec.json.format(msgspec.json.encode(ControlFile()), indent=2) + b"\n"


def file_of(path: Path) -> Path:
    """The file that is meant by a path: itself, or `stepscope.json` in a directory. One that does not exist is a file if
    its name ends in `.json`."""
    if path.is_dir() or (path.suffix != ".json" and not path.exists()):
        return path / NAME
    return path
