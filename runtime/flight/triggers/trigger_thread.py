"""Runs triggers of the program on their own threads: a slow one delays neither the loop nor other triggers."""

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
"""Findings of a trigger in one look; further ones are only counted."""
MAX_NEWS = 64
"""Looks that may wait for a trigger. It misses further ones."""
MAX_BYTES = 64 << 20
"""Size of the events in these looks."""
ANSWER_TIMEOUT_S = 1.0
"""Until then, the steps that an answer may refer to are retained, and flushes wait for it."""
IDLE_LOOK_S = 0.1
"""Seconds between two looks without new events."""


class Answer(NamedTuple):
    """Result of a look."""

    found: Sequence[Finding] = ()
    more: int = 0
    """Number of findings beyond `MAX_FINDINGS`, if it can be counted."""
    error: BaseException | None = None
    method: str = "look"
    text: str = ""
    """Text of the error. It is made on the trigger's thread, as `__str__` may be the program's code."""


def ask(evaluator: Evaluator, news: News) -> Answer:
    """Asks an evaluator. Exceptions, also those for an invalid finding, are part of the answer."""
    try:
        answer = evaluator.look(news)
        found = [
            copied_finding(one) for one in islice(answer, MAX_FINDINGS)
        ]  # each costs time, and there is more to do
        return Answer(found, len(answer) - len(found) if isinstance(answer, Sized) else 0)
    except BaseException as error:  # the program's code may raise anything; nothing cancels this thread
        return Answer(error=error, text=error_text(error))


class _Look(NamedTuple):
    news: News
    nbytes: int
    queued_at: float


class TriggerThread:
    """The evaluator of one trigger of the program, on its own daemon thread."""

    def __init__(self, trigger: Trigger) -> None:
        self.name = trigger.name
        self.missed = 0
        """Looks that were skipped because too many waited."""
        self._make = trigger.evaluator
        self._seen = 0
        self._queued_at = 0.0
        self._looks: SimpleQueue[News | None] = SimpleQueue()
        self._waiting: deque[_Look] = deque()
        self._answers: deque[tuple[int, Answer]] = deque()
        self._answered_until = 0
        self._work = BackgroundCall(self._run, name=f"stepscope trigger {self.name}", elsewhere=True)

    # on the loop

    def look(self, news: News) -> None:
        """Asks the evaluator and does not wait. A later call of `answers` returns the answer."""
        now = time.monotonic()
        if not (len(news.steps) or news.blocks) and now - self._queued_at < IDLE_LOOK_S:
            return
        nbytes = sum(events.nbytes for _, events in news.blocks)
        if len(self._waiting) >= MAX_NEWS or sum(look.nbytes for look in list(self._waiting)) + nbytes > MAX_BYTES:
            self.missed += 1
            return
        self._queued_at = now
        self._waiting.append(_Look(news, nbytes, now))
        self._looks.put(news)
        self._work.start()

    def answers(self) -> list[Answer]:
        """Returns the answers since the last call."""
        answers = [self._answers.popleft() for _ in range(len(self._answers))]
        self._answered_until = max([self._answered_until, *(at for at, _ in answers)])
        return [answer for _, answer in answers]

    def end(self) -> None:
        """Ends the thread after the queued looks. Does not wait."""
        self._looks.put(None)

    @property
    def waited_for(self) -> bool:
        """Whether there are answers, or one is expected within `ANSWER_TIMEOUT_S`."""
        return bool(self._answers) or not self._late(default=True)

    def resolved(self, at: int) -> bool:
        """Whether the findings until `at`, in ns, were collected, or are too late."""
        return self._answered_until >= at or not self.waited_for

    def seen(self, until: int) -> int:
        """Returns the time, in ns, up to which it has seen the events until `until`; `until` if its answer is too late."""
        return until if self._late(default=True) else min(self._seen, until)

    def _late(self, *, default: bool) -> bool:
        for look in list(self._waiting)[:1]:
            return time.monotonic() - look.queued_at > ANSWER_TIMEOUT_S
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
