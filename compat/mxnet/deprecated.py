"""Former names of functions."""

from __future__ import annotations

from stepscope.compat.mxnet import functions
from stepscope.compat.mxnet.errors import one_of
from stepscope.runtime.display.warning import warn

MODES = ("symbolic", "imperative", "api", "memory", "all")


def profiler_set_config(mode: str = "symbolic", filename: str = "profile.json") -> None:
    """`set_config(profile_<mode>=True, filename=filename)`.

    Raises:
        MXNetValueError: for another mode, or a filename that is none.
    """
    _deprecated("profiler_set_config", "set_config")
    one_of("mode", mode, MODES)
    functions.set_config(**{f"profile_{mode}": True}, filename=filename)


def profiler_set_state(state: str = "stop") -> None:
    """`set_state(state)`, with its errors."""
    _deprecated("profiler_set_state", "set_state")
    functions.set_state(state)


def dump_profile() -> None:
    """`dump(True)`, with its errors."""
    _deprecated("dump_profile", "dump")
    functions.dump(True)


def _deprecated(name: str, instead: str) -> None:
    warn(f"{name}() is deprecated; use {instead}() instead")
