"""Completing what an exporter has open, at its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import anyio

from stepscope.runtime.errors import OutputError

GRACE = 0.5
"""Seconds that a cancelled call still takes to complete what it can."""


async def complete_all(open_now: Callable[[], Iterable[int]], complete: Callable[[int], Awaitable[None]]) -> None:
    """Completes each file that is open; one that fails does not keep the others from it.

    Args:
        open_now: keys of the files that are open; `complete` takes its own away.
        complete: completes one file, and goes on where a cancelled call was.

    Raises:
        OutputError: the first one, after all files were tried.
    """
    try:
        await _try_each(open_now, complete)
    except anyio.get_cancelled_exc_class():
        with anyio.move_on_after(GRACE, shield=True):
            await _try_each(open_now, complete)
        raise


async def _try_each(open_now: Callable[[], Iterable[int]], complete: Callable[[int], Awaitable[None]]) -> None:
    errors: list[OutputError] = []
    for key in list(open_now()):
        try:
            await complete(key)
        except OutputError as error:
            errors.append(error)
    if errors:
        raise errors[0]
