"""An exception in words."""

from __future__ import annotations

from stepscope.runtime.accounting.part_errors import from_signal_handler

LONGEST = 4096
"""Characters of a text; what is longer is cut."""


def error_text(error: BaseException) -> str:
    """Its type and what it says, cut after `LONGEST` characters; the type alone if it says nothing, or cannot be made to."""
    kind = type(error).__name__
    try:
        text = f"{kind}: {said}" if (said := str(error)) else kind
    except BaseException as failure:  # of its own `__str__`: it is the error that counts
        if from_signal_handler(failure):
            raise
        text = kind
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text):,} characters)"
