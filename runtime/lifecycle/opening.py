"""Opens a run: session and recorder, drain loop, pipeline."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable
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

log = logging.getLogger("stepscope")


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Whose run it is, and where it is written."""

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
    """Opens a run.

    Args:
        facts: its name, rank and output, which was made.
        setup: its backends, exporters and settings.
        steps: the side of the threads that step.
        control: handles commands that exporters receive; `None` if the profiler accepts none.

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
