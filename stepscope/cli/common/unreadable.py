"""How a command ends that reads several recordings, of which some cannot be read."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.cli.common.messages import message
from stepscope.runtime.display.text_table import human_count, printable
from stepscope.runtime.errors import INCOMPLETE

MOST_NAMED = 20
"""Recordings that are named; the others are counted."""


def exit_code(unreadable: Sequence[object]) -> int:
    """The exit code. Standard error has a sentence if it is not 0, and the name of each recording.

    Args:
        unreadable: as texts: each names a recording, and says why it could not be read.
    """
    if not unreadable:
        return 0
    message(f"the result is not whole: {human_count(len(unreadable), 'recording')} could not be read")
    for each in unreadable[:MOST_NAMED]:
        message(printable(f"not read: {each}"))
    return INCOMPLETE
