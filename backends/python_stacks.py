"""Stacks of Python functions, by looking at them from time to time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from itertools import count
from types import CodeType, FrameType

import msgspec

from stepscope.backends.counters.counting import SamplingBackend
from stepscope.runtime.display.code_places import of_the_program
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Block, Kind, empty_block
from stepscope.runtime.events.tracks import TrackKind
from stepscope.runtime.threads.background_call import frames

CATEGORY = "python_function"

MAX_DEPTH = 128
"""Functions of a stack; of a deeper one the innermost are left out."""

_ids = count(3 << 61)


class _Call(msgspec.Struct, gc=False):
    """A function that was on a stack at the last look."""

    code: CodeType
    name: int
    since: int
    id: int
    inside: int = 0
    """Time of the calls in it that are over, in ns."""


class PythonStacksBackend(SamplingBackend):
    """Records what functions threads are in, as spans of category `python_function` on a row beside each thread.

    A function that is seen at two looks in a row counts as one call in between; one that is shorter than the interval may
    be missed. Functions of stepscope's own are left out, with what they call of Python's library. Each look holds the
    interpreter for some µs per thread.

    Args:
        interval: seconds between two looks.
        always: whether windows have stacks that were not asked for with them (`WindowDetail.stacks`).
        name: of this source.

    Raises:
        ValueError: if the interval is not above 0.
    """

    what = "stacks"

    def __init__(self, interval: float = 0.005, *, always: bool = True, name: str = "python stacks") -> None:
        super().__init__(name, interval, always=always)
        self._stacks: dict[int, list[_Call]] = {}
        self._tracks: dict[int, int] = {}
        self._names: dict[CodeType, int] = {}

    def _sample(self, now: int) -> tuple[Block | None, bytes]:
        done: list[tuple[int, _Call, int, int]] = []
        threads = {thread.ident: thread for thread in threading.enumerate()}
        current = frames()
        for ident in [ident for ident in self._stacks if ident not in current]:
            done += self._end_calls(ident, 0, now)
            del self._stacks[ident]
        for ident, frame in current.items():
            thread = threads.get(ident)
            if thread is not None and thread.name.startswith("stepscope"):
                continue
            done += self._look(ident, thread, _codes(frame), now)
        del current
        return _block(done), b""

    def _look(
        self, ident: int, thread: threading.Thread | None, codes: list[CodeType], now: int
    ) -> list[tuple[int, _Call, int, int]]:
        stack = self._stacks.setdefault(ident, [])
        if ident not in self._tracks:
            native = getattr(thread, "native_id", None) or ident % (1 << 22)
            name = f"{thread.name if thread is not None else f'thread {native}'} (functions)"
            # A number that no thread of the system has: the row lies beside that of the thread.
            self._tracks[ident] = tracks.new(TrackKind.THREAD, os.getpid(), (1 << 24) + native, name, tracks.process())
        same = 0
        while same < min(len(stack), len(codes)) and stack[same].code is codes[same]:
            same += 1
        done = self._end_calls(ident, same, now)
        for code in codes[same:]:
            stack.append(_Call(code, self._name(code), now, next(_ids)))
        return done

    def _end_calls(self, ident: int, depth: int, now: int) -> list[tuple[int, _Call, int, int]]:
        """Ends the calls above a depth: (track, call, parent's id, end)."""
        stack = self._stacks[ident]
        done: list[tuple[int, _Call, int, int]] = []
        while len(stack) > depth:
            call = stack.pop()
            parent = stack[-1] if stack else None
            if parent is not None:
                parent.inside += now - call.since
            done.append((self._tracks[ident], call, 0 if parent is None else parent.id, now))
        return done

    def _border_passed(self, now: int) -> tuple[Block | None, bytes]:
        done = [each for ident in list(self._stacks) for each in self._end_calls(ident, 0, now)]
        self._stacks.clear()
        return _block(done), b""

    def _delivered_until(self, now: int) -> int:
        return min((stack[0].since for stack in self._stacks.values() if stack), default=now)

    def _name(self, code: CodeType) -> int:
        found = self._names.get(code)
        if found is None:
            place = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"
            found = self._names[code] = strings.intern(f"{code.co_qualname} ({place})")
        return found


def _codes(frame: FrameType | None) -> list[CodeType]:
    """Functions of a stack that are the program's, the outermost first."""

    def outwards() -> Iterator[FrameType]:
        at = frame
        while at is not None:
            yield at
            at = at.f_back

    return [each.f_code for each in of_the_program(list(outwards())[::-1])][:MAX_DEPTH]


def _block(done: list[tuple[int, _Call, int, int]]) -> Block | None:
    if not done:
        return None
    block = empty_block(len(done))
    block["kind"] = int(Kind.SPAN)
    block["category"] = strings.category(CATEGORY)
    for index, (track, call, parent, end) in enumerate(done):
        row = block[index]
        row["ts"], row["dur"], row["name"], row["id"] = call.since, end - call.since, call.name, call.id
        row["self_dur"], row["parent"], row["track"] = end - call.since - call.inside, parent, track
    return block
