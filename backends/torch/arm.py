"""Arming: makes this extension torch's ITT collector, which must happen before torch is imported."""

from __future__ import annotations

import os
import sys

from stepscope.runtime import _core

VARIABLE = "INTEL_LIBITTNOTIFY64"
"""Environment variable that names the collector's library; ITT's static part, inside torch, reads it."""

_reason = "stepscope did not arm it"


def arm() -> bool:
    """Makes torch's operators visible to the recorder, should they be asked for later. Costs nothing until then.

    Called when stepscope is imported. Child processes inherit the variable, and are armed as well.

    Returns:
        Whether torch can call our collector. False if another collector is named, such as VTune's, which is left in
        its place, and if torch was imported before.
    """
    global _reason
    named = os.environ.get(VARIABLE)
    if named and not _same_file(named, library()):
        _reason = f"{VARIABLE} names another collector, {named}; unset it for operators to arrive live"
        return False
    if not named and "torch" in sys.modules:
        _reason = "torch was imported before stepscope; for live operators import stepscope first"
        return False
    os.environ[VARIABLE] = named or library()
    _reason = f"this torch does not call the collector that {VARIABLE} names"
    return True


def reason() -> str:
    """The reason why operators do not arrive live; called if they do not."""
    return _reason


def library() -> str:
    """Path of the collector: the native core."""
    return str(_core.__file__)


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
