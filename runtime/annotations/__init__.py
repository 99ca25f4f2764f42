"""Annotations of a program's code: decorators, domains, instrumented modules, and tasks of asyncio and trio.

Read first: `decorate` and `domain`, then `instrument`, then `tasks` with `asyncio_tasks`.
"""
