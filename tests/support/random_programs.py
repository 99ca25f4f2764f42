"""Random programs of tasks, threads and generators, which hold spans across everything that Python lets them."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from random import Random
from typing import Any

import stepscope as sc

Program = tuple[Any, ...]
"""An action and what it needs, such as `("span", [actions])`."""


class Failure(Exception):
    """The exception of programs."""


PLAIN = ("span", "span", "mark", "enter", "leave", "generator", "advance", "raise")
"""Actions without `await`."""

WAITING = (*PLAIN, "pause", "pause", "spawn", "spawn", "gather", "group", "cancel", "thread", "executor", "context",
           "callback", "iterate", "close")  # fmt: skip


def random_program(random: Random, depth: int = 3, actions: tuple[str, ...] = WAITING) -> list[Program]:
    """Actions of one task or function, nested up to `depth` deep."""
    program: list[Program] = []
    for _ in range(random.randint(0, 4)):
        action = random.choice(actions)
        inner: Any = random.randint(0, 7)
        if action == "raise" and inner < 5:
            action = "mark"
        if action in ("gather", "group"):
            inner = [random_program(random, depth - 1) for _ in range(2)] if depth > 0 else []
        elif action in ("thread", "executor", "context", "callback"):
            inner = random_program(random, depth - 1, PLAIN) if depth > 0 else []
        elif action in ("span", "spawn", "iterate", "close"):
            inner = random_program(random, depth - 1, actions) if depth > 0 else []
        program.append((action, inner))
    return program


class Runner:
    """Runs one program, and knows which of its spans have ended."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended: list[int] = []
        """The numbers (argument `n`) of the spans whose exit has returned."""
        self._open_spans: list[tuple[int, sc.span]] = []
        self._generators: list[Generator[None]] = []
        self._tasks: list[asyncio.Future[Any]] = []
        self._pool = ThreadPoolExecutor(2)

    def run(self, program: list[Program], loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        """Runs it on a loop of its own, and leaves what is left to the end of the loop and the garbage collector."""
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.get_loop().set_exception_handler(_expected)
            runner.run(self._main(program))
        self._pool.shutdown()
        self._generators.clear()
        while self._open_spans:
            self._leave(0)

    async def _main(self, program: list[Program]) -> None:
        try:
            await self._wait(program)
        except (Failure, ExceptionGroup, asyncio.CancelledError):
            pass  # as the program wanted
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _enter(self) -> tuple[int, sc.span]:
        self.begun += 1
        number = self.begun
        one = sc.span("s", n=number)
        one.__enter__()
        return number, one

    def _exit(self, entered: tuple[int, sc.span]) -> None:
        entered[1].__exit__(None, None, None)
        self.ended.append(entered[0])

    def _leave(self, which: int) -> None:
        self._exit(self._open_spans.pop(which % len(self._open_spans)))

    def _plain(self, program: list[Program]) -> None:
        for action, inner in program:
            if action == "span":
                entered = self._enter()
                try:
                    self._plain(inner)
                finally:
                    self._exit(entered)
            else:
                self._simple(action, inner)

    def _simple(self, action: str, inner: int) -> None:
        if action == "mark":
            sc.instant("mark")
        elif action == "enter":
            self._open_spans.append(self._enter())
        elif action == "leave" and self._open_spans:
            self._leave(inner)
        elif action == "generator":
            self._generators.append(self._generate(inner))
        elif action == "advance" and self._generators:
            self._advance(inner % len(self._generators))
        elif action == "raise":
            raise Failure

    def _advance(self, which: int) -> None:
        generator = self._generators[which]
        try:
            next(generator, None)
        except ValueError:
            pass  # another thread is in it

    def _generate(self, turns: int) -> Generator[None]:
        entered = self._enter()
        try:
            for _ in range(turns):
                yield
        finally:
            self._exit(entered)

    async def _iterate(self, program: list[Program]) -> AsyncGenerator[None]:
        entered = self._enter()
        try:
            for action in program:
                await self._wait([action])
                yield
        finally:
            self._exit(entered)

    async def _wait(self, program: list[Program]) -> None:
        for action, inner in program:
            if action == "span":
                entered = self._enter()
                try:
                    await self._wait(inner)
                finally:
                    self._exit(entered)
            elif action == "pause":
                await asyncio.sleep(0.001 if inner == 0 else 0)
            elif action in ("iterate", "close"):
                await self._loop_over(self._iterate(inner), closing=action == "close")
            elif action in PLAIN:
                self._simple(action, inner)
            else:
                await self._start(action, inner)

    async def _loop_over(self, items: AsyncGenerator[None], *, closing: bool) -> None:
        """Takes two items; without `closing` the generator is left to whoever finalises it."""
        if closing:
            async with aclosing(items):
                await self._loop_over(items, closing=False)
            return
        seen = 0
        async for _ in items:
            seen += 1
            if seen == 2:
                break

    async def _start(self, action: str, inner: Any) -> None:
        loop = asyncio.get_running_loop()
        if action == "spawn":
            self._tasks.append(asyncio.create_task(self._wait(inner)))
        elif action == "cancel" and self._tasks:
            self._tasks[int(inner) % len(self._tasks)].cancel()
        elif action == "gather":
            await asyncio.gather(*map(self._wait, inner), return_exceptions=True)
        elif action == "group":
            async with asyncio.TaskGroup() as group:
                for one in inner:
                    group.create_task(self._wait(one))
        elif action == "thread":
            await asyncio.to_thread(self._plain, inner)
        elif action == "executor":
            await loop.run_in_executor(self._pool, self._plain, inner)
        elif action == "context":
            contextvars.copy_context().run(self._plain, inner)
        elif action == "callback":
            loop.call_soon(self._plain, inner)


def _expected(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Failures of callbacks and of generators that nobody waits for are part of the programs."""
    error = context.get("exception")
    if error is not None and not isinstance(error, Failure | ExceptionGroup):
        loop.default_exception_handler(context)
