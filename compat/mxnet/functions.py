"""The functions of `mxnet.profiler`, for the recording of this process."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from stepscope.compat.mxnet.errors import MXNetStateError, MXNetValueError, one_of
from stepscope.compat.mxnet.objects.durations import FRAMES, Frame
from stepscope.compat.mxnet.objects.names import domain_name, legal
from stepscope.compat.mxnet.recording import Recording
from stepscope.compat.mxnet.remote import RemoteControl, for_server, remote_control
from stepscope.compat.mxnet.settings import Capability, capabilities_of, settings_of
from stepscope.compat.mxnet.statistics import FramePass
from stepscope.compat.mxnet.tables import FORMATS, SORT_KEYS, render
from stepscope.runtime.display.code_places import warn
from stepscope.runtime.lifecycle.join import join
from stepscope.runtime.profiler import Profiler
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.validation import find_invalid_value, suggesting

log = logging.getLogger("stepscope")

STATES = ("run", "stop")

_recording = Recording()
_remote: object = None
"""The handle of `set_kvstore_handle`."""


def set_kvstore_handle(handle: object) -> None:
    """Sets the handle that reaches the processes of `profile_process="server"`.

    Args:
        handle: a `RemoteControl`; anything else, as a handle of MXNet's, is kept, and calls for the server raise.
    """
    global _remote
    _remote = handle


def _controlled(profile_process: str, call: str) -> Recording | RemoteControl:
    return remote_control(_remote, call) if for_server(profile_process) else _recording


def set_config(**settings: Any) -> None:
    """Sets what is recorded, and to which file. Settings that are not given have their defaults again.

    While it records, another file or other backends begin a recording of their own; the file of the former one is complete.
    In one process no recording writes over the file of another: a name that was used gets a number.

    Args:
        settings: those of `MXNetSettings`: `filename`, `profile_all`, `aggregate_stats` and so on. Booleans may be texts.

    Raises:
        MXNetValueError: for a name that there is none of, with the nearest, or a value that does not fit.
        MXNetError: for the server, if nothing reaches it.
    """
    checked = settings_of(settings)
    if for_server(checked.profile_process):
        others = {name: value for name, value in settings.items() if name != "profile_process"}
        remote_control(_remote, "set_config()").configure(others)
        return
    _recording.configure(checked, frozenset(settings))


@suggesting
def set_state(state: str = "stop", profile_process: str = "worker") -> None:
    """Begins to record, or stops; any number of times, into the same file.

    Args:
        state: `run` or `stop`.
        profile_process: `worker` is this process, `server` those that `set_kvstore_handle` reaches.

    Raises:
        MXNetStateError: for another state; it is a KeyError, too, as mxnet raises.
        MXNetValueError: for another process.
        MXNetError: for the server, if nothing reaches it.
        OutputError: if the directory of the run cannot be made.
    """
    one_of("state", state, STATES, MXNetStateError)
    _controlled(profile_process, "set_state()").set_state(state)


@suggesting
def pause(profile_process: str = "worker") -> None:
    """Records nothing until `resume()`. Pauses nest; the gap is in the trace, and spans across it are cut.

    Raises:
        MXNetValueError: for another process than `worker` and `server`.
        MXNetError: for the server, if nothing reaches it.
    """
    _controlled(profile_process, "pause()").pause()


@suggesting
def resume(profile_process: str = "worker") -> None:
    """Ends the latest `pause()`; errors are those of that.

    A duration that was started in the pause, and not stopped, begins now.
    """
    _controlled(profile_process, "resume()").resume()


@suggesting
def dump(finished: bool = True, profile_process: str = "worker") -> None:
    """Writes everything recorded so far to the file, which is complete then, as at any other moment.

    Any number of times. Later events are added to the same file.

    Args:
        finished: whether to stop, too; `set_state("run")` goes on.
        profile_process: as in `set_state`.

    Raises:
        MXNetError: if nothing was recorded yet; for the server, if nothing reaches it.
        MXNetValueError: for another process than `worker` and `server`.
        OutputError: if the table of allocations cannot be written.
    """
    _controlled(profile_process, "dump()").dump(bool(finished))


@suggesting
def dumps(reset: bool = False, format: str = "table", sort_by: str = "total", ascending: bool = False) -> str:
    """Returns the statistics of everything recorded so far, and changes nothing else.

    Args:
        reset: whether they begin anew.
        format: `table` and `json` as MXNet has them, `csv` and `markdown` with standard deviation, quantiles, the latest
            value and the time-weighted mean of counters, and the rate of frames. Times in ms, memory in kB.
        sort_by: `total`, `avg`, `min`, `max` or `count`, within each category.
        ascending: whether the smallest comes first.

    Returns:
        The text; empty unless `aggregate_stats` is set.

    Raises:
        MXNetValueError: for any other value; it is an AssertionError, too.
    """
    one_of("format", format, FORMATS)
    one_of("sort_by", sort_by, SORT_KEYS)
    for name, value in (("ascending", ascending), ("reset", reset)):
        if value not in (False, True):
            raise MXNetValueError(f"{name} must be True or False, {got(value)}")
    rows = _recording.rows(bool(reset))
    return render(rows, format, sort_by, bool(ascending)) if _recording.settings.aggregate_stats else ""


def step() -> None:
    """Ends a step of the loop; MXNet has no such function. Without `set_state("run")` it does nothing."""
    _recording.step()


def passes(frame: Frame) -> tuple[FramePass, ...]:
    """The passes of a frame that were recorded, at most the latest 10,000, each with its number, time and rate.

    Raises:
        TypeError: if it is no frame.
    """
    if not isinstance(frame, Frame):
        raise TypeError(f"passes() takes a Frame, {got(frame)}")
    return _recording.passes(domain_name(frame.domain) + FRAMES, legal("frame", frame.name))


def capabilities() -> tuple[Capability, ...]:
    """Lists the data that the settings record, and those that they do not, with the reason."""
    return capabilities_of(_recording.settings)


def current_profiler() -> Profiler | None:
    """The profiler that records, or did last: its reports and errors. `None` before the first `set_state("run")`."""
    return _recording.profiler


def current_file() -> Path | None:
    """The trace file that is being written, or was written last."""
    return _recording.files.latest


def close() -> None:
    """Ends the recording and its file. It is done at the interpreter's exit, too; `set_state("run")` begins another one."""
    _recording.close()


_DEPRECATED_MODES = ("symbolic", "imperative", "api", "memory", "all")


def profiler_set_config(mode: str = "symbolic", filename: str = "profile.json") -> None:
    """Calls `set_config(profile_<mode>=True, filename=filename)`.

    Raises:
        MXNetValueError: for another mode, or a filename that is none.
    """
    _deprecated("profiler_set_config", "set_config")
    one_of("mode", mode, _DEPRECATED_MODES)
    set_config(**{f"profile_{mode}": True}, filename=filename)


def profiler_set_state(state: str = "stop") -> None:
    """Calls `set_state(state)`, with its errors."""
    _deprecated("profiler_set_state", "set_state")
    set_state(state)


def dump_profile() -> None:
    """Calls `dump(True)`, with its errors."""
    _deprecated("dump_profile", "dump")
    dump(True)


def _deprecated(name: str, instead: str) -> None:
    warn(f"{name}() is deprecated; use {instead}() instead")


MODES = {1: "profile_symbolic", 2: "profile_imperative", 4: "profile_api", 8: "profile_memory"}
"""Bits of `MXNET_PROFILER_MODE`."""


_Mode = Annotated[int, msgspec.Meta(ge=0, le=sum(MODES))]


def start_from_environment(environment: Mapping[str, str]) -> bool:
    """Begins to record if `MXNET_PROFILER_AUTOSTART` is 1, as `MXNET_PROFILER_MODE` says (a sum of `MODES`, 13 by default).

    A value that cannot be followed is an error in the log; the default is taken.
    """
    if not _variable(environment, "MXNET_PROFILER_AUTOSTART", bool, False):
        return False
    chosen = _variable(environment, "MXNET_PROFILER_MODE", _Mode, 13)
    _recording.configure(settings_of({name: bool(chosen & bit) for bit, name in MODES.items()}), frozenset())
    _recording.run()
    return True


def _variable(environment: Mapping[str, str], name: str, kind: Any, default: int) -> int:
    """The value of a variable of the environment, a default if it is not set, empty or wrong."""
    text = environment.get(name, "").strip().lower()
    if not text:
        return default
    invalid = find_invalid_value(text, kind, name, strict=False)
    if invalid is not None:
        log.error("%s; %d is taken", invalid.text, default)
        return default
    return int(msgspec.convert(text, kind, strict=False))


def _forked() -> None:
    """Called in a forked child: its events go into its parent's trace, if the parent was recording."""
    global _recording
    recorded = _recording.running
    _recording = _recording.of_child()
    if recorded:
        join()


os.register_at_fork(after_in_child=_forked)
