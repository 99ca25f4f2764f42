"""The run of a profiler: opened as session and recorder, drain loop and pipeline, and closed on a thread of its own."""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack

import msgspec

from stepscope.runtime.events import clock
from stepscope.runtime.export.run import Metadata, Run
from stepscope.runtime.files.paths import readable
from stepscope.runtime.inbox.inbox import Inbox
from stepscope.runtime.inbox.messages import Message
from stepscope.runtime.journal.writer import JournalWriter
from stepscope.runtime.lifecycle.output_directory import Output
from stepscope.runtime.loop import drain_loop
from stepscope.runtime.loop.pipeline import Pipeline, PipelineSteps, RunSetup
from stepscope.runtime.recording.recorder import Recorder, RecorderAccounts, recorder
from stepscope.runtime.requests.command import Answer, Command
from stepscope.runtime.session.job import job_from_environment, this_host
from stepscope.runtime.sources.thread_bound import BoundSource
from stepscope.runtime.threads.background_call import BackgroundCall
from stepscope.runtime.threads.one_shot import OneShot

log = logging.getLogger("stepscope")

OVERRUN_S = 0.35
"""Seconds beyond `Options.close_timeout` after which the caller stops waiting for the loop."""
JOINING_S = 0.1
"""Seconds beyond `Options.close_timeout` to wait for threads whose work is done."""
LATE_CLOSING_S = 5.0
"""Seconds that the interpreter's exit waits for closings past their deadline."""
POLL_S = 0.02
"""Seconds between two checks whether a late closing has ended."""

_unfinished: set[CloseProcedure] = set()
"""Closings that have begun and not ended, without those whose loop is blocked by a `derive` of a backend."""


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The profiler of the run, and its directory."""

    name: str
    rank: int | None
    world_size: int | None
    metadata: Metadata
    output: Output


class OpenRun(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that `start()` has opened."""

    loop: drain_loop.DrainLoop
    pipeline: Pipeline
    recorder: Recorder
    accounts: RecorderAccounts
    anchor: clock.ClockAnchor
    """Read when the run was opened."""
    without_effect: str
    """A note on options of rings that have no effect, as the rings exist already."""


def open_run(
    facts: RunFacts, setup: RunSetup, steps: PipelineSteps, control: Callable[[Command], Future[Answer]] | None
) -> OpenRun:
    """Opens a run, whose output was made. `control` handles commands that exporters receive, if the profiler accepts any.

    Raises:
        OutputError: if the session directory cannot be made.
        OSError, MemoryError, RuntimeError: if the system gives no files, memory or thread.
    """
    output, options, keep_last = facts.output, setup.options, setup.keep_last
    source = recorder(options, output, output.path, output.path if output.made else None, setup.limits)
    accounts: list[RecorderAccounts] = []
    with ExitStack() as undo:
        undo.callback(source.delivered, output)
        without_effect = source.without_effect(options)
        if without_effect:
            log.warning("profiler %r: %s", facts.name, without_effect)
        anchor = clock.ClockAnchor.read()
        clock.wall_clock.look(anchor)
        writers = (getattr(exporter, "writer", None) for exporter in setup.exporters)
        run = Run(
            name=readable(facts.name),
            output_dir=output.path,
            pid=os.getpid(),
            host=this_host(),
            rank=facts.rank,
            world_size=facts.world_size,
            anchor=anchor,
            metadata=facts.metadata.snapshot,
            note_output=output.note_output,
            job=job_from_environment(),
            clock=clock.identity(),
            id=secrets.token_hex(16),
            control=control,
            journal=next((writer for writer in writers if isinstance(writer, JournalWriter)), None),
        )
        output.announce(source.directory, steps.serial, run, 0 if keep_last is None else keep_last.steps)
        loop = drain_loop.acquire(source)
        undo.callback(drain_loop.release)

        def make() -> Pipeline:
            accounts.append(RecorderAccounts(source))
            inbox: Inbox[Message] = Inbox(setup.limits.inbox_bytes, loop.wake, loop.wake_later)
            return Pipeline(run, setup, inbox, steps, actions=output, session=source.directory)

        output.pipeline = pipeline = loop.add(make)
        undo.pop_all()
    if not output.announced:
        source.undelivered[output] = None
    return OpenRun(
        loop=loop,
        pipeline=pipeline,
        recorder=source,
        accounts=accounts[0],
        anchor=anchor,
        without_effect=without_effect,
    )


class CloseProcedure:
    """Closes a profiler's backends, windows and exporters on the loop, and then removes the note of the run.

    If the loop does not finish by the deadline, the caller stops waiting (`timed_out`). The session and the note of the run
    then stay for `stepscope recover`. If the loop finishes later, closing is completed.
    """

    def __init__(self, name: str, opened: OpenRun, output: Output, timeout: float) -> None:
        """Args: name of the profiler; what it has opened; its output; `Options.close_timeout`."""
        self.timed_out = False
        """Whether the loop missed the deadline, so that recorded events may not have been delivered."""
        self.note = ""
        """A note on that for diagnostics."""
        self._name = name
        self._opened, self._loop, self._pipeline = opened, opened.loop, opened.pipeline
        self._output = output
        self._timeout = timeout

    def run(self, bound: Sequence[BoundSource], closes_by: Callable[[], int]) -> None:
        """Closes the profiler by the deadline that `closes_by` returns, in ns; first the `bound` sources, on their own threads."""
        _unfinished.add(self)
        deadline = closes_by()
        for source in bound:
            source.wait_for_thread((deadline - clock.now()) / 1e9 - self._timeout / 2)
            note = source.abandon_changes()
            if note:
                self._pipeline.notes.append(note)
        seconds = max((deadline - clock.now()) / 1e9, 0.0)
        # The accounts end before the exporters close: meanwhile the recorder may drain for other profilers.
        removal = self._loop.start(self._loop.remove, self._pipeline, seconds, self._opened.accounts.close)
        if not removal.wait(seconds) and (late := self._late(removal)):
            self._abandon(late)
            BackgroundCall(self._end_late, removal, deadline, name="stepscope closing").start()
            return
        self._end(removal)
        now = clock.now()
        until = min(now + round(OVERRUN_S * 1e9), max(now, deadline) + round(JOINING_S * 1e9))
        # One end for all: each may have handed something to a thread that hangs.
        joins = [worker.join for worker in self._pipeline.workers] + [source.join for source in self._pipeline.sources]
        for join in joins:
            join(max(until - clock.now(), 0) / 1e9)

    def _late(self, removal: OneShot[None]) -> str:
        """Waits `OVERRUN_S` seconds longer for the pipeline's removal. Returns the reason if it has not ended by then, else nothing."""
        before = self._progress()
        if removal.wait(OVERRUN_S):
            return ""
        blocked = self._loop.blocked_in()
        # The loop closes many windows in one turn, and does not answer meanwhile.
        if not blocked or self._progress() != before:
            return "there was not enough time for all that waited"
        _unfinished.discard(self)  # it may never return
        return f"the runtime's loop is blocked in {blocked}"

    def _progress(self) -> tuple[object, ...]:
        """Counts that change while the loop works on the pipeline."""
        statistics = self._pipeline.statistics()
        return statistics.windows, statistics.offered, self._pipeline.derived

    def _end_late(self, removal: OneShot[None], deadline: int) -> None:
        """Completes a closing after its deadline, and logs that there is nothing to recover."""
        self._end(removal)
        if not self.timed_out:
            log.warning(
                "profiler %r closed %.1f s after the deadline: there is nothing to recover. Events that were not written by the deadline "
                "count as dropped; raise Options.close_timeout, which is %g s, to have them written",
                *(self._name, (clock.now() - deadline) / 1e9, self._timeout),
            )

    def _end(self, removal: OneShot[None]) -> None:
        """Waits until the pipeline was closed or has failed."""
        try:
            removal.result()
            self._output.finish()
            self.timed_out = False
        except BaseException as error:  # an internal error, or the end of the loop
            log.error("profiler %r could not be closed", self._name, exc_info=error)
            self._abandon("it failed: please report it")
        try:
            drain_loop.release()
            if not self.timed_out:
                self._opened.recorder.delivered(self._output)  # after the loop, which drains it
        except BaseException as error:
            log.error("the runtime's loop could not be ended", exc_info=error)
        finally:
            _unfinished.discard(self)

    def _abandon(self, why: str) -> None:
        self.timed_out = True
        self.note = (
            f"not delivered: closing was given up, because {why}; the rest is left in {self._opened.recorder.directory}: when this "
            f"process has ended, `{shlex.join(['stepscope', 'recover', str(self._output.path)])}` brings it back"
        )
        log.error("profiler %r: %s", self._name, self.note)


def wait_for_late_closings() -> None:
    """Waits at the interpreter's exit for closings past their deadline, `LATE_CLOSING_S` at most, but for those whose loop is
    blocked. Otherwise the session directory of an overloaded process would stay."""
    deadline = time.monotonic() + LATE_CLOSING_S
    while _unfinished and time.monotonic() < deadline:
        time.sleep(POLL_S)


os.register_at_fork(after_in_child=_unfinished.clear)
