"""The content of the watched file, and the requests in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from stepscope.runtime.control.entry_points.decoding import decode_json
from stepscope.runtime.files.encoding import json_bytes
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
"""Default name of the watched file in a directory."""


class ControlFile(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of a control file: the fields of `WindowRequest`, and commands. All are optional.

    Raises:
        ValueError: naming the field, the value and what it should be.
    """

    command: Literal["extend", "abort"] | None = None
    """Changes the running armed window: `extend` makes it longer by `steps` or `seconds`, `abort` ends it with the current
    step, or on several ranks with the next one that rank 0 chooses. Without a command, a running window does not change."""
    start_step: StepNumber | Literal["next"] | None = None
    """First step of a window; without it, the file requests no window."""
    steps: Count | None = None
    """Its length."""
    stop_step: StepNumber | None = None
    """Or its last step."""
    seconds: Seconds | None = None
    """Or how long it lasts."""
    ranks: str | tuple[Rank, ...] | None = None
    """The ranks that record: `"0,3-5"` or `[0, 3, 4, 5]`; default: all."""
    run_id: RunId = ""
    """Identifies the request: only with another one, the same steps are recorded again."""
    warmup: int = 0
    """Steps in which backends warm up."""
    granularity: Count = 1
    """Windows are made of groups of so many steps."""
    group_start: StepNumber = 0
    """Number of the first step of a group."""
    past: Literal["refuse", "clip"] = "refuse"
    """If the first step is past: refuse, or record the rest of the window."""
    overlap: Literal["refuse", "queue"] = "refuse"
    """If another window has some of its steps: refuse, or record after that window."""
    stage: Stage = ""
    """Records only in the stage of this name, such as `fit`. Other stages refuse; that one accepts when it begins."""
    detail: str | WindowDetail | None = None
    """Level of detail of the window: `"stacks,memory=off"` or `{"stacks": true, "memory": false}`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.command is None:
            self.request()
        elif self.command == "extend" and (self.steps is None) == (self.seconds is None):
            raise ValueError("command 'extend' takes steps or seconds: how much longer the window is to be")

    def end_request(self) -> EndRequest | None:
        """Returns the requested end of the running window; `None` without a command."""
        if self.command == "extend":
            return EndRequest(command="extend", steps=self.steps or 0, seconds=self.seconds or 0.0)
        if self.command == "abort":
            return EndRequest(command="abort", run_id=self.run_id, reason="the control file says so")
        return None

    def key(self) -> str:
        """Returns the content as text."""
        return json_bytes(self).decode()

    def request(self) -> WindowRequest | None:
        """Returns the requested window; `None` if there is none.

        Raises:
            ValueError: if the fields contradict each other.
        """
        if self.start_step is None:
            return None
        fields: dict[str, Any] = msgspec.structs.asdict(self)
        del fields["command"]
        fields.update(ranks=ranks_from(self.ranks), detail=detail_from(self.detail))
        return WindowRequest(**fields)


def decode_control_file(content: bytes) -> ControlFile:
    """Decodes a control file.

    Raises:
        ControlError: with line, column and reason.
    """
    return decode_json(content, ControlFile)


def default_content() -> bytes:
    """Returns the content of a new file, without a request, but with every field."""
    return msgspec.json.format(msgspec.json.encode(ControlFile()), indent=2) + b"\n"


def file_of(path: Path) -> Path:
    """Returns the control file for a path: the path itself, or `stepscope.json` in a directory. A path that does not exist
    counts as a file if its name ends in `.json`."""
    if path.is_dir() or (path.suffix != ".json" and not path.exists()):
        return path / NAME
    return path
