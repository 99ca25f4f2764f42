"""How a program's own code comes to be spans: decorators, domains, whole modules, and tasks of asyncio and trio.

Read first: `decorate` and `domain`, then `instrument`, then `tasks` with `asyncio_tasks`.
"""
