"""Whether a stream may take the place of another one."""

from __future__ import annotations

from pathlib import Path

from stepscope.collector.merge.copies import covers
from stepscope.collector.merge.recording import Recording
from stepscope.runtime.errors import FormatError


def objection(successor: Path, before: Path) -> str:
    """Why a stream does not take the place of another one; empty if it does.

    It does if it is of the same run and has every window of the other one, with as many events or more. One that does not
    say whose it is gives way: no command can use it.

    Args:
        successor: journal of the one, which has ended.
        before: journal of the other.

    Raises:
        OSError: if they cannot be read.
    """
    try:
        old = Recording.of(before, "")
    except FormatError:
        return ""
    except OSError:
        raise
    except Exception as error:  # whatever is in it: it stays
        return f"which cannot be compared: {type(error).__name__}: {error}"
    try:
        new = Recording.of(successor, "")
    except OSError:
        raise
    except Exception as error:
        return f"with which it cannot be compared: {type(error).__name__}: {error}"
    if new.process != old.process:
        return "which is of another run"
    return "" if covers(new, old) else "which has events that it lacks: both are kept"
