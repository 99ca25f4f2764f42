"""Calls of the program's code on our threads: callbacks, triggers, and exporters and backends that the program brings.

Our threads block all asynchronous signals. Code of the program, and the programs that it starts, get the mask of the program's
main thread instead, for as long as the code runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

from stepscope.runtime import _core

T = TypeVar("T")

run = _core.with_programs_mask
"""Calls a function of the program."""


def is_programs(part: object) -> bool:
    """Whether an object is of a class that is not ours."""
    return type(part).__module__.partition(".")[0] != __name__.partition(".")[0]


async def run_async(call: Callable[[], Awaitable[T]]) -> T:
    """Awaits what a function of the program returns. While that waits for something, the thread has its own mask."""

    async def started() -> T:
        return await call()

    return await _by_steps(started())


@coroutine
def _by_steps(steps: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    value: Any = None
    step: Callable[[Any], Any] = steps.send
    while True:
        try:
            waits_for = run(step, value)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            value = yield waits_for
            step = steps.send
        except GeneratorExit:
            run(steps.close)
            raise
        except BaseException as error:  # a cancellation, or what it waited for has raised
            value, step = error, steps.throw
