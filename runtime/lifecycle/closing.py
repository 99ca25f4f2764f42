"""What is left to do for closing a profiler when nothing more is recorded, on a thread of its own."""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections.abc import Callable, Sequence

import anyio.lowlevel

from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.events import clock
from stepscope.runtime.lifecycle.output_directory import Output
from stepscope.runtime.loop import drain_loop
from stepscope.runtime.loop.pipeline import Pipeline
from stepscope.runtime.options import Options
from stepscope.runtime.recording.recorder import Recorder
from stepscope.runtime.recording.recorder_accounts import RecorderAccounts
from stepscope.runtime.sources.thread_bound import BoundSource
from stepscope.runtime.threads.background_call import BackgroundCall
from stepscope.runtime.threads.one_shot import OneShot

log = logging.getLogger("stepscope")

OVERRUN = 0.35
"""Seconds that closing may take beyond `Options.close_timeout` before the loop is given up."""
MANY = 100
"""Windows that wait to be closed, from which on they may be what takes long."""
JOINING = 0.1
"""Seconds beyond `Options.close_timeout` in which threads that have done their work may end."""
LATE_CLOSING_S = 5.0
"""How long the interpreter's exit waits for closings that have passed their deadline."""
LOOK_S = 0.02
"""Between two looks at whether a late closing has ended."""

_unfinished: set[CloseProcedure] = set()
"""Closings that have begun and not ended, without those whose loop is blocked by a `derive` of a backend."""


class CloseProcedure:
    """Closes a profiler's backends, windows and exporters on the loop, and says so in its directory when that is done.

    Where the loop does not get done with it, it is given up, because the caller's deadline counts. Nothing is deleted then:
    the session stays when the process ends, with the note of the run that says where it is, for `stepscope recover`. Should
    the loop go on after all, closing is completed.
    """

    def __init__(
        self,
        name: str,
        options: Options,
        hub_: drain_loop.DrainLoop,
        pipeline: Pipeline,
        recorder: Recorder,
        accounts: RecorderAccounts | None,
        output: Output,
    ) -> None:
        self.given_up = False
        """Whether something that was recorded has not been delivered, as far as is known now."""
        self.note = ""
        """What is to be said of that."""
        self._name = name
        self._options = options
        self._hub = hub_
        self._pipeline = pipeline
        self._recorder = recorder
        self._accounts = accounts
        self._output = output

    def run(self, bound: Sequence[BoundSource], closes_by: Callable[[], int]) -> None:
        """Does it.

        Args:
            bound: sources that other threads may have to change first.
            closes_by: when it is to be done, in ns.
        """
        _unfinished.add(self)
        deadline = closes_by()
        closed = self._pipeline.statistics().windows.closed
        for source in bound:
            source.wait_for_thread((deadline - clock.now()) / 1e9 - self._options.close_timeout / 2)
            note = source.give_up()
            if note:
                self._pipeline.notes.append(note)
        seconds = max((deadline - clock.now()) / 1e9, 0.0)
        removal = self._hub.start(self._hub.remove, self._pipeline, seconds)
        if not removal.wait(seconds) and (late := self._late(removal, closed)):
            self._give_up(late)
            BackgroundCall(self._end_late, removal, deadline, name="stepscope closing").start()
            return
        self._end(removal)
        now = clock.now()
        until = min(now + round(OVERRUN * 1e9), max(now, deadline) + round(JOINING * 1e9))
        # One end for all: each may have handed something to a thread that hangs.
        joins = [worker.join for worker in self._pipeline.workers] + [source.join for source in self._pipeline.sources]
        for join in joins:
            join(max(until - clock.now(), 0) / 1e9)

    def _late(self, removal: OneShot[None], closed: int) -> str:
        """Waits as long as closing may overrun its deadline; why it has not ended then, empty if it has.

        Args:
            closed: windows that were closed before closing began.
        """
        before = self._pipeline.statistics()
        answer = self._hub.start(anyio.lowlevel.checkpoint)
        if removal.wait(OVERRUN):
            return ""
        now = self._pipeline.statistics()
        waited = now.windows.opened - closed
        # Many windows are sorted and closed in one turn of the loop, which answers nobody meanwhile.
        if waited >= MANY and (answer.done or (now.windows, now.offered) != (before.windows, before.offered)):
            return f"{human_count(waited, 'window')} waited, more than there was time for"
        if answer.done:
            return "there was not enough time for all that waited"
        blocked = self._hub.blocked_in()
        if blocked:
            _unfinished.discard(self)  # nobody knows whether it will ever return
        return f"the runtime's loop is blocked in {blocked}" if blocked else "the runtime's loop does not answer"

    def _end_late(self, removal: OneShot[None], deadline: int) -> None:
        """Ends a closing that was given up, and logs that nothing is left to recover."""
        self._end(removal)
        if not self.given_up:
            log.warning(
                "profiler %r closed %.1f s after the deadline: nothing is left to recover. What was not written by the deadline "
                "counts as dropped; raise Options.close_timeout, which is %g s, to have it written",
                *(self._name, (clock.now() - deadline) / 1e9, self._options.close_timeout),
            )

    def _end(self, removal: OneShot[None]) -> None:
        """Waits until the pipeline is closed, or could not be."""
        try:
            removal.result()
            if self._accounts is not None:
                self._hub.do(self._accounts.close)
            self._output.finish()
            self.given_up = False
        except BaseException as error:  # a fault of ours, or the end of the loop
            log.error("profiler %r could not be closed", self._name, exc_info=error)
            self._give_up("it failed: please report it")
        try:
            drain_loop.release()
            if not self.given_up:
                self._recorder.delivered(self._output)  # after the loop, which drains it
        except BaseException as error:
            log.error("the runtime's loop could not be ended", exc_info=error)
        finally:
            _unfinished.discard(self)

    def _give_up(self, why: str) -> None:
        self.given_up = True
        self.note = (
            f"not delivered: closing was given up, because {why}; the rest is left in {self._recorder.directory}: when this "
            f"process has ended, `{shlex.join(['stepscope', 'recover', str(self._output.path)])}` brings it back"
        )
        log.error("profiler %r: %s", self._name, self.note)


def wait_for_late_closings() -> None:
    """Waits at the interpreter's exit for closings that have passed their deadline, as on a machine that is overloaded, for
    `LATE_CLOSING_S` at most: a process that ends sooner leaves its session directory behind.

    There is no wait for a closing whose loop is blocked.
    """
    deadline = time.monotonic() + LATE_CLOSING_S
    while _unfinished and time.monotonic() < deadline:
        time.sleep(LOOK_S)


os.register_at_fork(after_in_child=_unfinished.clear)
