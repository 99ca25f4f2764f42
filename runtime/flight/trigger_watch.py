"""The trigger watch: asks the triggers, and decides which findings are saved."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence, Sized
from itertools import islice
from typing import NamedTuple

import msgspec

from stepscope.runtime.accounting.error_log import ErrorLog, error_text
from stepscope.runtime.flight.settings import FlightRecorder
from stepscope.runtime.flight.triggers.memory_high import MemoryHigh
from stepscope.runtime.flight.triggers.trigger import Evaluator, Finding, News, Trigger, copied_finding
from stepscope.runtime.threads.background_call import BackgroundCall
from stepscope.runtime.threads.native_threads import SimpleQueue
from stepscope.runtime.threads.user_code import run

MAX_WAITING = 256
"""Calls of `save` that may wait for the loop."""
MAX_REASONS = 256
"""Reasons with counts of their own; further ones count as `other`, as the program chooses the reasons of `save`."""

WORSE = 2.0
"""A finding whose severity is this many times that of the last saved one is saved despite the cool-down."""

MAX_FINDINGS = 256
"""Findings of a trigger in one look; further ones are only counted."""
MAX_NEWS = 64
"""Looks that may wait for a trigger. It misses further ones."""
MAX_BYTES = 64 << 20
"""Size of the events in these looks."""
ANSWER_TIMEOUT_S = 1.0
"""Seconds for which the steps that an answer may refer to are retained, and flushes wait for it."""
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
        answers = [self._answers.popleft() for _ in range(len(self._answers))]
        self._answered_until = max([self._answered_until, *(at for at, _ in answers)])
        return [answer for _, answer in answers]

    def end(self) -> None:
        """Ends the thread after the queued looks. Does not wait."""
        self._looks.put(None)

    @property
    def waited_for(self) -> bool:
        """Whether there are answers, or one is expected within `ANSWER_TIMEOUT_S`."""
        return bool(self._answers) or not self._late()

    def resolved(self, at: int) -> bool:
        """Whether the findings until `at`, in ns, were collected, or are too late."""
        return self._answered_until >= at or not self.waited_for

    def seen(self, until: int) -> int:
        """Returns the time, in ns, up to which it has seen the events until `until`; `until` if its answer is too late."""
        return until if self._late() else min(self._seen, until)

    def _late(self) -> bool:
        """Whether its answer is too late, or none is expected."""
        oldest = list(self._waiting)[:1]
        return not oldest or time.monotonic() - oldest[0].queued_at > ANSWER_TIMEOUT_S

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


class Fired(msgspec.Struct, frozen=True):
    """A trigger fired."""

    reason: str
    """Name of the trigger, or the argument of `save`."""
    finding: Finding
    always: bool = False
    """Ignores the cool-down, because the run ends with this finding."""


class WatchStatistics(msgspec.Struct, frozen=True):
    """Accounts of the triggers: fired = windows + joined + suppressed + waiting."""

    fired: dict[str, int]
    """Numbers of findings by reason."""
    windows: int
    """Windows that were opened."""
    joined: dict[str, int]
    """Fired in a step that a window contains already."""
    suppressed: dict[str, dict[str, int]]
    """Findings that were not saved, by cause (`cooldown`, `max_windows`, `busy`, `too many` at once) and reason."""
    waiting: int
    refused: int
    """Calls of `save` that were refused because too many waited."""
    errors: int
    missed: dict[str, int] = {}
    """Looks that triggers of the program missed, because too many looks waited."""


class TriggerWatch:
    """Has one evaluator for each trigger, and the queue of `save` calls. Each trigger of the program has its own thread."""

    def __init__(self, settings: FlightRecorder) -> None:
        self.raised: ErrorLog[BaseException] = ErrorLog(contexts=True)
        """Exceptions of evaluators."""
        self.examined_until = 0
        """Time, in ns, up to which the findings of all triggers were collected by the last look."""
        self._settings = settings
        # Any thread and signal handlers append: a deque needs no lock for that.
        self._calls: deque[Fired] = deque()
        self._waiting: list[Fired] = []
        self._last: dict[str, tuple[int, int, float]] = {}
        self._fired: Counter[str] = Counter()
        self._joined: Counter[str] = Counter()
        self._suppressed: dict[str, Counter[str]] = {}
        self._windows = self._refused = 0
        self._evaluators: list[tuple[str, Evaluator]] = []
        self._threads: list[TriggerThread] = []
        for trigger in settings.triggers:
            if _is_ours(trigger):
                self._evaluators.append((trigger.name, trigger.evaluator()))
            else:
                self._threads.append(TriggerThread(trigger))

    # from any thread

    def call(self, fired: Fired) -> bool:
        """Queues a call of `save`. Returns whether there was room; a finding with `always` is never refused."""
        if len(self._calls) >= MAX_WAITING and not fired.always:
            self._refused += 1
            return False
        self._calls.append(fired)
        return True

    # on the loop

    @property
    def waiting(self) -> bool:
        """Whether findings wait to be processed, or a trigger's thread is at work."""
        return bool(self._calls or self._waiting) or any(thread.waited_for for thread in self._threads)

    def resolved(self, at: int) -> bool:
        """Whether all findings until `at`, in ns, were processed."""
        return not (self._calls or self._waiting) and all(thread.resolved(at) for thread in self._threads)

    def note_calls(self) -> None:
        """Counts the queued calls of `save`, for the next look."""
        while self._calls:
            self._note(self._calls.popleft())

    def look(self, news: News) -> list[Fired]:
        """Asks all triggers. Returns the findings, by time, up to the time that all triggers have seen (`examined_until`)."""
        for name, evaluator in self._evaluators:
            self._add_answer(name, ask(evaluator, news), news.now)
        self.examined_until = news.now
        for thread in self._threads:
            try:
                thread.look(news)
            except RuntimeError as error:  # there is no thread for it
                self.raised.record_and_log("look", error, f"trigger {thread.name!r}")
            self.examined_until = min(
                self.examined_until, thread.seen(news.now)
            )  # before the answers: more may come while they are read
            for answer in thread.answers():
                self._add_answer(thread.name, answer, news.now)
        due = sorted(
            (fired for fired in self._waiting if fired.finding.at <= self.examined_until), key=lambda f: f.finding.at
        )
        self._waiting = [fired for fired in self._waiting if fired.finding.at > self.examined_until]
        return due

    def end(self) -> None:
        for thread in self._threads:
            thread.end()

    def refusal(self, fired: Fired, step: int) -> str:
        """Why no window may be opened for this; empty if one may."""
        settings = self._settings
        if settings.max_windows is not None and self._windows >= settings.max_windows:
            return "max_windows"
        last = self._last.get(fired.reason)
        if last is None or fired.always:
            return ""
        if last[2] and fired.finding.severity >= WORSE * last[2]:
            return ""
        soon = fired.finding.at - last[0] < settings.cooldown * 1e9 or abs(step - last[1]) < settings.cooldown_steps
        return "cooldown" if soon else ""

    def opened(self, fired: Fired, step: int) -> None:
        """Counts a window that was opened for this."""
        self._windows += 1
        self._last[fired.reason] = (fired.finding.at, step, fired.finding.severity)

    def joined(self, fired: Fired) -> None:
        """Counts a finding whose step a window contains already."""
        self._joined[fired.reason] += 1

    def suppress(self, fired: Fired, why: str) -> None:
        """Counts a finding that is not saved."""
        self._suppressed.setdefault(why, Counter())[fired.reason] += 1

    def statistics(self) -> WatchStatistics:
        return WatchStatistics(
            fired=dict(self._fired),
            windows=self._windows,
            joined=dict(self._joined),
            suppressed={why: dict(counts) for why, counts in list(self._suppressed.items())},
            waiting=len(self._waiting),
            refused=self._refused,
            errors=self.raised.count,
            missed={thread.name: thread.missed for thread in self._threads if thread.missed},
        )

    def _note(self, fired: Fired) -> None:
        if fired.reason not in self._fired and len(self._fired) >= MAX_REASONS:
            fired = msgspec.structs.replace(fired, reason="other")
        self._fired[fired.reason] += 1
        self._waiting.append(fired)

    def _add_answer(self, name: str, answer: Answer, now: int) -> None:
        if answer.error is not None:
            self.raised.record_and_log(answer.method, answer.error, f"trigger {name!r}", answer.text)
            return
        if answer.more > 0:
            self._fired[name] += answer.more
            self._suppressed.setdefault("too many", Counter())[name] += answer.more
        for finding in answer.found:
            # A finding in the future would delay the end of the run.
            self._note(Fired(name, msgspec.structs.replace(finding, at=min(finding.at, now))))


def _is_ours(trigger: Trigger) -> bool:
    """Whether a trigger runs no code of the program."""
    reads_driver = isinstance(trigger, MemoryHigh) and trigger.device is not None
    return type(trigger).__module__.startswith(f"{__package__}.") and not reads_driver
