"""Triggers of the program, asked beside the loop: one that waits, or computes for long, holds up nobody but itself."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence, Sized
from itertools import islice
from typing import NamedTuple

from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.flight.triggers.trigger import Evaluator, Finding, News, Trigger, copied_finding
from stepscope.runtime.threads.background_call import BackgroundCall
from stepscope.runtime.threads.native_threads import SimpleQueue
from stepscope.runtime.threads.user_code import run

MAX_FINDINGS = 256
"""What a trigger may find at one look; the rest is counted."""
MAX_NEWS = 64
"""Looks that may wait for a trigger, and bytes of events in them; further ones it misses."""
MAX_BYTES = 64 << 20
PATIENCE = 1.0
"""Seconds in which an answer is waited for: until then the steps that it may want are kept, and flushes wait."""
REST = 0.1
"""Seconds between two looks when nothing has happened."""


class Answer(NamedTuple):
    """What became of a look."""

    found: Sequence[Finding] = ()
    more: int = 0
    """Findings that were too many, as far as they can be counted."""
    error: BaseException | None = None
    method: str = "look"
    text: str = ""
    """What the error says, made where it was raised: its `__str__` is the program's code, too."""


def ask(evaluator: Evaluator, news: News) -> Answer:
    """Has an evaluator look; whatever it raises is an answer, and so is what is wrong with a finding."""
    try:
        answer = evaluator.look(news)
        found = [
            copied_finding(one) for one in islice(answer, MAX_FINDINGS)
        ]  # each costs time, and there is more to do
        return Answer(found, len(answer) - len(found) if isinstance(answer, Sized) else 0)
    except BaseException as error:  # of the program's code: also a cancellation would be meant for us
        return Answer(error=error, text=error_text(error))


class _Look(NamedTuple):
    news: News
    nbytes: int
    asked: float


class TriggerThread:
    """The evaluator of one trigger of the program, on a daemon thread of its own."""

    def __init__(self, trigger: Trigger) -> None:
        self.name = trigger.name
        self.missed = 0
        """Looks that it was not asked for, as too many waited for it."""
        self._make = trigger.evaluator
        self._seen = 0
        self._asked = 0.0
        self._looks: SimpleQueue[News | None] = SimpleQueue()
        self._waiting: deque[_Look] = deque()
        self._answers: deque[tuple[int, Answer]] = deque()
        self._taken = 0
        self._work = BackgroundCall(self._run, name=f"stepscope trigger {self.name}", elsewhere=True)

    # on the loop

    def look(self, news: News) -> None:
        """Has it look, without waiting; what it answers comes with a later `answers`."""
        now = time.monotonic()
        if not (len(news.steps) or news.blocks) and now - self._asked < REST:
            return
        nbytes = sum(events.nbytes for _, events in news.blocks)
        if len(self._waiting) >= MAX_NEWS or sum(look.nbytes for look in list(self._waiting)) + nbytes > MAX_BYTES:
            self.missed += 1
            return
        self._asked = now
        self._waiting.append(_Look(news, nbytes, now))
        self._looks.put(news)
        self._work.start()

    def answers(self) -> list[Answer]:
        """What it has answered since."""
        taken = [self._answers.popleft() for _ in range(len(self._answers))]
        self._taken = max([self._taken, *(at for at, _ in taken)])
        return [answer for _, answer in taken]

    def end(self) -> None:
        """Its thread ends after what it was asked for; nobody waits for that."""
        self._looks.put(None)

    @property
    def waited_for(self) -> bool:
        """Whether there are answers to take, or one is on its way and not late."""
        return bool(self._answers) or not self._late(default=True)

    def resolved(self, at: int) -> bool:
        """Whether what it found of everything until `at`, in ns, was taken; it may be asked again and again meanwhile."""
        return self._taken >= at or not self.waited_for

    def seen(self, until: int) -> int:
        """Up to when, in ns, it knows everything, if there is everything until `until`; one that is late is not waited for."""
        return until if self._late(default=True) else min(self._seen, until)

    def _late(self, *, default: bool) -> bool:
        for look in list(self._waiting)[:1]:
            return time.monotonic() - look.asked > PATIENCE
        return default

    # on its thread

    def _run(self) -> None:
        evaluator: Evaluator | None = None
        failed = False
        while (news := self._looks.get()) is not None:
            answer = Answer()
            try:
                if evaluator is None and not failed:
                    evaluator = run(self._make)
            except BaseException as error:
                failed, answer = True, Answer(error=error, method="evaluator", text=error_text(error))
            if evaluator is not None:
                answer = run(ask, evaluator, news)
            self._answers.append((news.now, answer))
            self._seen = news.now
            self._waiting.popleft()
