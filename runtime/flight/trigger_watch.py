"""The watch: asks the triggers, and decides what is saved."""

from __future__ import annotations

from collections import Counter, deque

import msgspec

from stepscope.runtime.accounting.error_log import ErrorLog
from stepscope.runtime.flight.settings import FlightRecorder
from stepscope.runtime.flight.triggers.memory_high import MemoryHigh
from stepscope.runtime.flight.triggers.trigger import Evaluator, Finding, News, Trigger
from stepscope.runtime.flight.triggers.trigger_thread import Answer, TriggerThread, ask

MAX_WAITING = 256
"""Calls of `save` that may wait for the loop."""
MAX_REASONS = 256
"""Reasons that are told apart; the reasons of calls are the user's, and may be without number."""


WORSE = 2.0
"""What is so many times as bad as what was saved last is saved although the cool-down has not passed."""


class Fired(msgspec.Struct, frozen=True):
    """A trigger fired."""

    reason: str
    """Name of the trigger, or what the call of `save` said."""
    finding: Finding
    always: bool = False
    """The cool-down does not hold: the run ends with it."""


class WatchStatistics(msgspec.Struct, frozen=True):
    """Accounts of the triggers: fired = windows + joined + suppressed + waiting."""

    fired: dict[str, int]
    """By reason."""
    windows: int
    """Windows that were opened."""
    joined: dict[str, int]
    """Fired in a step that was saved, or being saved, already."""
    suppressed: dict[str, dict[str, int]]
    """Did not save, by why (`cooldown`, `max_windows`, `busy`, `too many` at once) and reason."""
    waiting: int
    refused: int
    """Calls of `save` that were too many at a time to be looked at."""
    errors: int
    missed: dict[str, int] = {}
    """Looks that triggers of the program missed, because too many waited for them."""


class TriggerWatch:
    """One evaluator for each trigger, and the calls of `save`. Evaluators of the program's triggers are on threads of their
    own."""

    def __init__(self, settings: FlightRecorder) -> None:
        self.raised: ErrorLog[BaseException] = ErrorLog(contexts=True)
        """By evaluators."""
        self.known = 0
        """Up to when, in ns, all that triggers find was taken at the last look."""
        self._settings = settings
        # Appended to by any thread and by signal handlers: a deque needs no lock for that.
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
        """Takes a call of `save`, to be looked at with the others that wait; false if they are too many.

        What ends the run is not among those that may be too many.
        """
        if len(self._calls) >= MAX_WAITING and not fired.always:
            self._refused += 1
            return False
        self._calls.append(fired)
        return True

    # on the loop

    @property
    def waiting(self) -> bool:
        """Whether something fired that was not looked at yet, or may fire for what triggers look at now."""
        return bool(self._calls or self._waiting) or any(thread.waited_for for thread in self._threads)

    def resolved(self, at: int) -> bool:
        """Whether all was looked at that fired by `at`, in ns."""
        return not (self._calls or self._waiting) and all(thread.resolved(at) for thread in self._threads)

    def take_calls(self) -> None:
        """Takes the calls that came so far."""
        while self._calls:
            self._note(self._calls.popleft())

    def look(self, news: News) -> list[Fired]:
        """What has fired, in the order of its times, up to when all triggers know everything."""
        for name, evaluator in self._evaluators:
            self._take(name, ask(evaluator, news), news.now)
        self.known = news.now
        for thread in self._threads:
            try:
                thread.look(news)
            except RuntimeError as error:  # there is no thread for it
                self.raised.record_and_log("look", error, f"trigger {thread.name!r}")
            self.known = min(
                self.known, thread.seen(news.now)
            )  # before the answers: more may come while they are taken
            for answer in thread.answers():
                self._take(thread.name, answer, news.now)
        due = sorted((fired for fired in self._waiting if fired.finding.at <= self.known), key=lambda f: f.finding.at)
        self._waiting = [fired for fired in self._waiting if fired.finding.at > self.known]
        return due

    def end(self) -> None:
        """Nobody looks any more."""
        for thread in self._threads:
            thread.end()

    def refusal(self, fired: Fired, step: int) -> str:
        """Why a window is not to be opened for this, empty if it is."""
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
        """A window was opened for this."""
        self._windows += 1
        self._last[fired.reason] = (fired.finding.at, step, fired.finding.severity)

    def joined(self, fired: Fired) -> None:
        """A window has, or had, its step already."""
        self._joined[fired.reason] += 1

    def suppress(self, fired: Fired, why: str) -> None:
        """Nothing is saved for this."""
        self._suppressed.setdefault(why, Counter())[fired.reason] += 1

    def statistics(self) -> WatchStatistics:
        """Accounts so far."""
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

    def _take(self, name: str, answer: Answer, now: int) -> None:
        if answer.error is not None:
            self.raised.record_and_log(answer.method, answer.error, f"trigger {name!r}", answer.text)
            return
        if answer.more > 0:
            self._fired[name] += answer.more
            self._suppressed.setdefault("too many", Counter())[name] += answer.more
        for finding in answer.found:
            # What is said to be in the future would be waited for at the end of the run.
            self._note(Fired(name, msgspec.structs.replace(finding, at=min(finding.at, now))))


def _is_ours(trigger: Trigger) -> bool:
    """Whether a trigger runs nothing of the program."""
    asks = isinstance(trigger, MemoryHigh) and trigger.device is not None
    return type(trigger).__module__.startswith(f"{__package__}.") and not asks
