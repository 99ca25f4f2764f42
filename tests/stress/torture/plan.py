"""A plan: everything that chance decides about one trial, drawn from its number."""

from __future__ import annotations

import random
import signal
from typing import Literal

import msgspec

from stepscope.exporters.memory import Method
from tests.stress.torture.victim import POLICIES, TASKS, THREADS

LONGEST = 0.3
"""Seconds of the longest delay."""
BOUND = 0.05
"""The same on the training thread, which a backend that is bound to it holds up."""
STILL = 0.2
"""The same of the journal: when it makes no progress for longer, rings may go on without it."""
QUEUE_ROOM_BYTES = 64 << 20
"""A queue of this size has room for all events that a slow journal waits with."""
ROOM = 1 << 18
"""Slots of rings in which nothing is dropped."""
WORKERS = 3
"""Processes that are forked, at most."""

Overflow = Literal["drop_newest", "drop_oldest", "block"]
Moment = Literal["open", "transition", "aclose"]
Own = Literal["close", "exit", "raise", ""]
Failing = Literal["", "raise", "exit", "interrupt", "cancel", "generator exit", "hang", "block"]
Delivery = Literal[
    "",
    "in time",
    "late",
    "out of order",
    "twice",
    "after close",
    "garbage",
    "noise",
    "too much",
    "lost",
    "no watermark",
]
FAILING: tuple[Failing, ...] = ("raise", "exit", "interrupt", "cancel", "generator exit", "hang", "block")
DELIVERIES: tuple[Delivery, ...] = (
    "in time", "late", "out of order", "twice", "after close", "garbage", "noise", "too much", "lost", "no watermark",
)  # fmt: skip
KINDS = ("trace.json", "trace.json.gz", "trace.pftrace", "trace.parquet", "trace-{window}.json")
BAD: tuple[tuple[str, Method], ...] = (
    *((how, method) for how in ("raise", "cancel", "exit", "hang", "block")
      for method in ("open", "export", "close_window", "aclose")),
    ("thread", "export"), ("again", "export"), ("slow", "export"), ("collector", "open"), ("connect", "open"),
)  # fmt: skip
"""How an exporter misbehaves, and in which method, as `faulty_exporter_loop.py` has it."""
Server = Literal["refusing", "dead", "half_open", "trickling", "resetting"]
SERVERS: tuple[Server, ...] = ("refusing", "dead", "half_open", "trickling", "resetting")


class Lag(msgspec.Struct, frozen=True):
    """How calls are delayed."""

    seed: int = 0
    share: float = 0.0
    """Of the calls."""
    longest: float = 0.0
    """Seconds."""
    total: float = 0.5
    """Seconds of all delays together: closing is to be possible in its time."""


class Backend(msgspec.Struct, frozen=True):
    """One backend."""

    bound: bool
    """Whether it is bound to the training thread."""
    lag: Lag
    derive: Lag
    """Of `derive`, which holds up the drain loop."""
    failing: Failing
    at: Moment
    delivery: Delivery


class Bad(msgspec.Struct, frozen=True):
    """An exporter that misbehaves."""

    how: str
    method: Method


class Output(msgspec.Struct, frozen=True):
    """An exporter that is well, if slow."""

    file: str
    lag: Lag


class Worker(msgspec.Struct, frozen=True):
    """A process that is forked and joins."""

    step: int
    """In which it is forked."""
    seconds: float
    """It lives so long."""
    ending: Literal["leaves", "killed", "stays"]


class Ending(msgspec.Struct, frozen=True):
    """How the program ends."""

    seconds: float
    """That it records."""
    own: Own
    """The program's action then; empty if it goes on until a signal comes."""
    signals: tuple[tuple[float, int], ...]
    """Signals from another process: seconds after the end has begun, and the number."""

    @property
    def in_order(self) -> bool:
        """Whether the profiler can close undisturbed."""
        asked = len(self.signals) + bool(self.own) == 1
        return asked and not {signal.SIGKILL, signal.SIGABRT} & {number for _, number in self.signals}

    @property
    def abrupt(self) -> bool:
        """Whether nothing had begun to close when the process died."""
        return not self.own and self.signals[0][1] in (signal.SIGKILL, signal.SIGABRT)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One trial."""

    number: int
    ending: Ending
    schedule: tuple[int, int, int] | None
    """Wait, warm-up, active."""
    keep_last: int
    """Steps of the flight recorder; 0: none."""
    save: float
    """Share of the steps in which its user saves."""
    threads: int
    tasks: int
    slots: int
    """Of a ring."""
    rings: int
    """All of them, in rings."""
    overflow: Overflow
    queue_bytes: int
    inbox_bytes: int
    drain_interval: float
    linger: float
    close_timeout: float
    journal: Lag
    outputs: tuple[Output, ...]
    bad: tuple[Bad, ...]
    server: Server
    """The server that exporters connect to, if they do."""
    backends: tuple[Backend, ...]
    workers: tuple[Worker, ...]

    @property
    def gapless(self) -> bool:
        """Whether each event is in one window or the next. Events of a backend on the training thread are between them."""
        bound = any(backend.bound for backend in self.backends)
        return not self.keep_last and (self.schedule is None or (self.schedule[:2] == (0, 0) and not bound))

    @property
    def exact(self) -> bool:
        """Whether the diary knows of every event, and when the last window ends: no other process, and no backend, records any, and
        rings and the journal's queue have room for all. Where the last steps had none, the window ends before them."""
        queue_has_room = self.queue_bytes >= QUEUE_ROOM_BYTES
        return self.gapless and not self.workers and not self.delivers and self.roomy and queue_has_room

    @property
    def roomy(self) -> bool:
        """Whether rings have room for all events."""
        return self.slots * self.rings >= ROOM and self.overflow != "drop_oldest"

    @property
    def delivers(self) -> bool:
        """Whether backends deliver, or lose, events."""
        return any(backend.delivery for backend in self.backends)

    @property
    def on_training_thread(self) -> float:
        """Seconds by which backends may move the deadline of closing."""
        return sum(backend.lag.longest for backend in self.backends if backend.bound)


def draw(number: int) -> Plan:
    """The plan of a trial."""
    chance = random.Random(number)
    keep_last = chance.choice([0, 0, 0, 0, 3, 20])
    forks = chance.choice([0, 0, 1, WORKERS])
    return Plan(
        number=number,
        ending=_ending(chance, forks > 0),
        schedule=None if keep_last else chance.choice([None, None, (0, 0, 2), (0, 0, 20), (1, 1, 3), (5, 0, 1)]),
        keep_last=keep_last,
        save=chance.choice([0.0, 0.02, 0.2]) if keep_last else 0.0,
        threads=chance.randint(0, THREADS),
        tasks=chance.randint(0, TASKS),
        slots=chance.choice([64, 256, 4096, 65_536, 65_536]),
        rings=chance.choice([1, 4, 64]),
        overflow=chance.choice(POLICIES),
        queue_bytes=chance.choice([1 << 16, 1 << 20, 64 << 20, 64 << 20]),
        inbox_bytes=chance.choice([1 << 14, 256 << 20]),
        drain_interval=chance.choice([0.001, 0.05, 0.5]),
        linger=chance.choice([0.0, 0.1, 5.0]),
        close_timeout=chance.choice([2.0, 3.0, 5.0]),
        journal=_lag(chance, STILL),
        outputs=tuple(Output(file, _lag(chance)) for file in chance.sample(KINDS, chance.randint(0, 2))),
        bad=tuple(Bad(how, method) for how, method in chance.choices(BAD, k=chance.choice([0, 0, 1, 2]))),
        server=chance.choice(SERVERS),
        backends=tuple(_backend(chance) for _ in range(chance.choice([0, 1, 1, 2]))),
        workers=tuple(
            Worker(chance.randint(1, 40), chance.uniform(0, 0.3), chance.choice(["leaves", "killed", "stays"]))
            for _ in range(forks)
        ),
    )


def _lag(chance: random.Random, longest: float = LONGEST) -> Lag:
    """Often none; else a few long delays, or many short ones."""
    share, longest = chance.choice([(0.0, 0.0), (0.1, longest), (1.0, longest), (1.0, longest / 30)])
    return Lag(chance.randrange(1 << 30), share, longest)


def _backend(chance: random.Random) -> Backend:
    bound = chance.random() < 0.3
    # Of one that is bound to the training thread, that thread waits; and an interrupt there is the program's own.
    ways: list[Failing] = [how for how in FAILING if not bound or how not in ("hang", "block", "interrupt")]
    failing: Failing = chance.choice(ways) if chance.random() < 0.4 else ""
    moments: list[Moment] = ["open", "transition", "aclose"]
    return Backend(
        bound=bound,
        lag=_lag(chance, BOUND if bound else LONGEST),
        derive=msgspec.structs.replace(_lag(chance), total=0.3) if chance.random() < 0.2 else Lag(),
        failing=failing,
        # `start()` waits for one that hangs while it opens.
        at=chance.choice(moments[1:] if failing in ("hang", "block") else moments),
        delivery=chance.choice([way for way in DELIVERIES if not bound or way != "too much"])
        if chance.random() < 0.6
        else "",
    )


def _ending(chance: random.Random, forks: bool) -> Ending:
    """Half of the endings are struck while the program closes, by whatever may come then."""
    seconds = chance.choice([0.05, 0.2, 0.5]) * chance.uniform(0.2, 1.0)
    endings: tuple[Own, ...] = ("close", "close", "exit", "raise", "", "")
    asked = chance.choice(endings)
    # CPython passes over an interrupt in what it calls after a fork.
    asking = signal.SIGTERM if forks else signal.SIGINT
    deadly = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, asking, signal.SIGABRT]
    # Short times too, as most closings last some milliseconds.
    later = chance.choice([0.003, 0.03, 0.3, 1.0]) * chance.random()
    if asked == "":
        first = chance.choice(deadly)
        signals = [(0.0, int(first))]
        if first in (signal.SIGTERM, signal.SIGINT) and chance.random() < 0.5:
            signals.append((later, int(chance.choice(deadly))))
        return Ending(seconds, "", tuple(signals))
    strikes = chance.random() < 0.5
    return Ending(seconds, asked, ((later, int(chance.choice(deadly))),) if strikes else ())
