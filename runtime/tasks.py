"""Tasks and what they start: what is watched while a profiler is open."""

from __future__ import annotations

from stepscope.runtime import _core, asyncio_tasks, executors, trio_tasks


def watch() -> None:
    """Watches thread pools from now on, and the tasks of what loop runs in this thread.

    Of other loops, and of later ones, the tasks are watched from the moment on at which one of them records.
    """
    executors.watch()
    asyncio_tasks.watch()
    trio_tasks.watch()


def release() -> None:
    """Leaves loops and thread pools as they were. Any thread."""
    executors.release()
    asyncio_tasks.release()
    trio_tasks.release()


def _running() -> tuple[str, int, _core.Coroutine | None] | None:
    return asyncio_tasks.running() or trio_tasks.running()


_core.set_task_lookup(_running)
